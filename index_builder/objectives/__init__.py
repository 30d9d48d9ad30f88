"""What training minimises."""

from index_builder.objectives.contrastive import contrastive_loss

__all__ = ["contrastive_loss"]
