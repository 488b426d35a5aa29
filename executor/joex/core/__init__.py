"""The decisions, without any I/O: no clock, no random, no database. Time is an argument."""
