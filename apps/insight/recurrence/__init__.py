"""An LSTM and a decoder of equal size, measured beside each other: `pippin explain --versus-rnn`.

`report` has what is found; `measure.measure_recurrence` finds it and needs mlx.
"""
