"""Detection of objects: boxes, their overlaps and their suppression, and regions of feature maps."""
