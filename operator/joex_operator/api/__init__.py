"""The resources ``JoexPool`` and ``PeriodicTask``: their models, their names, and the CRDs made from them. Pure."""
