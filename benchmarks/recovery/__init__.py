"""Recovery: how soon work goes on after a fault, in Joex and its peers, with the default settings for it."""
