"""The executor at work: one asyncio service per file."""
