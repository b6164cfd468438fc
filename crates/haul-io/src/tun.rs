//! TUN devices with virtio-net headers, so that segmentation-offload super-packets pass whole.
