"""The commands: one module each, whose `command` turns options into a library call and its
answer into text. They import nothing heavy at the top: `pippin --help` imports them all.
"""
