"""The DataLoader that Strawberry users deserve."""
