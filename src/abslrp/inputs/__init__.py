"""From files and names to tensors and networks: images, transforms, models and class names."""
