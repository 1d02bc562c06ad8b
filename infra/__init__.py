"""The outside world: how to reach it, write to it, start it, and an embedded twin of each service.

Nothing is handed on from here: a part imports the file it needs, so that a client of one service never loads another's.
"""
