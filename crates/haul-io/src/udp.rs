//! UDP with segmentation offload and batches.
