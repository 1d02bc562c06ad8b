"""Topic to topic: pure cores inside thin shells. Start with `controller` and `assembler`.

Nothing is handed on from here: the controller must not load Faust, which the assembler's shell (`app`) is made with.
"""
