"""Find the odd one out in a set of images: CIFAR-100 through a ResNet-34, or handwritten digits."""
