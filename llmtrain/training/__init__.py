"""The one loop, and what it needs: loss, optimizers, schedule, metrics, what a person sees."""
