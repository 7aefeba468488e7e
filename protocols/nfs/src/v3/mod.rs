//! NFS v3's messages (RFC 1813), as both halves have them.
