"""Running text on which `pippin parity` compares probabilities; written for it, nobody else's."""

TEXT = """\
An apple tree grown from a pip does not bear the fruit that the pip came from. Every pip is a \
new cross, and most of the crosses are sour. Growers who want a certain apple take a cutting \
instead and graft it on a root that is already in the ground. The cutting keeps its kind, the \
root gives it water, and after three or four winters the first good apples hang on it. In an \
old orchard one can often see the seam, a ring of thicker bark about a hand above the grass.

The first thing to know about bottling juice is that it spoils within a day. Wash the apples, \
cut out what is brown, and press them while they are cold. Heat the juice to 78 degrees \
Celsius, hold it there for twenty minutes, and fill the bottles to the brim, so that no air is \
left under the cap. A bottle that was closed hot pulls its lid inwards when it cools; if the \
lid springs back under your thumb, drink that bottle first. Ten kilograms of apples give about \
six litres. Stored in the dark at 12 degrees, the juice keeps for a year or two.

def litres(apples_kg: float, yield_per_kg: float = 0.6) -> float:
    \"\"\"Juice, in litres, that a press gives from `apples_kg` kilograms of apples.\"\"\"
    if apples_kg < 0:
        raise ValueError("the weight of the apples cannot be negative")
    return round(apples_kg * yield_per_kg, 2)

Question: A family presses 35 kg of apples on Saturday and 25 kg on Sunday. How many bottles of \
0.75 litres can they fill if each kilogram gives 0.6 litres?
Answer: Together they press 60 kg, which gives 60 x 0.6 = 36 litres. Each bottle holds 0.75 \
litres, so they can fill 36 / 0.75 = 48 bottles.

In 1665 a student left the university because of the plague and went home to his mother's farm \
in Lincolnshire. He spent the next eighteen months there, thinking about light, about the moon \
and about why things fall. Many years later he told a friend that the notion of gravity had \
come to him in the garden, "occasioned by the fall of an apple". Nobody saw the apple hit his \
head; that was added by people who wanted a better story. The tree itself blew down in a storm \
around 1820, but it did not die. It took root again where it lay, and its cuttings grow today \
in Cambridge, in Massachusetts, and in dozens of other places. They still bear a large, rather \
tasteless cooking apple called Flower of Kent.

Dear Ms. Okafor, thank you for your order of 12 June. We have sent two crates of Cox's Orange \
and one crate of Bramley to your address in Leeds; they should arrive on Thursday. The pears \
that you asked for are not ripe yet. If you wish, we can send them in September at no extra \
cost, or return the money to your account. Please let us know which you prefer. Yours \
sincerely, H. Lindqvist

A model that predicts the next word meets all of this in the same way. It has read recipes, \
letters and programs, and it keeps from them what helps it to guess: that a letter which begins \
with "Dear" ends with "Yours", that an opening bracket wants a closing one, that after "48" the \
word "bottles" is likely. It does not know the taste of an apple. When it is right, it is right \
because someone wrote something like it before; when it is wrong, it is wrong in the same \
fluent voice. That is worth remembering each time it answers at once and without a doubt.
"""
