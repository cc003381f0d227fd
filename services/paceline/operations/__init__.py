"""Operations that the command line and the console share: offsets of groups, progress of moves, times as text."""
