"""Building blocks of methods: local training, losses, metrics, aggregation, adapters, augmentation."""
