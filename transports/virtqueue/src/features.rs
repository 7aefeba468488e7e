//! Supported virtio features (virtio 1.3, 6), as bits.

/// `VIRTIO_RING_F_INDIRECT_DESC`
pub(crate) const INDIRECT_DESC: u64 = 1 << 28;

/// `VIRTIO_RING_F_EVENT_IDX`
pub(crate) const EVENT_IDX: u64 = 1 << 29;

/// `VIRTIO_F_VERSION_1`
pub(crate) const VERSION_1: u64 = 1 << 32;

/// `VHOST_F_LOG_ALL`, of vhost and not of virtio: the device marks the pages it writes.
pub(crate) const LOG_ALL: u64 = 1 << 26;
