//! Addresses of sockets between hosts and guests (vsock(7)), which rustix lacks.

use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::{AddressFamily, SocketAddrAny};

/// A vsock address: `sockaddr_vm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VsockAddr {
    /// The context id of a host or guest.
    pub cid: u32,
    /// The port.
    pub port: u32,
}

impl VsockAddr {
    /// The context id for listening to any (`VMADDR_CID_ANY`).
    pub const ANY: u32 = libc::VMADDR_CID_ANY;

    /// The context id of the loopback (`VMADDR_CID_LOCAL`).
    pub const LOCAL: u32 = libc::VMADDR_CID_LOCAL;

    /// The context id of a guest's host (`VMADDR_CID_HOST`).
    pub const HOST: u32 = libc::VMADDR_CID_HOST;

    /// The port for listening at one that the system chooses (`VMADDR_PORT_ANY`).
    pub const ANY_PORT: u32 = libc::VMADDR_PORT_ANY;

    /// Converts `any`, if it is a vsock address.
    pub fn of(any: &SocketAddrAny) -> Option<VsockAddr> {
        let whole = any.addr_len() as usize >= size_of::<libc::sockaddr_vm>();
        if any.address_family() != AddressFamily::VSOCK || !whole {
            return None;
        }
        // SAFETY: the length was checked, and any bytes are valid integers.
        #[allow(unsafe_code)]
        let raw = unsafe { any.as_ptr().cast::<libc::sockaddr_vm>().read_unaligned() };
        Some(VsockAddr {
            cid: raw.svm_cid,
            port: raw.svm_port,
        })
    }
}

// SAFETY: the pointer is to a complete `sockaddr_vm` that outlives the call, and the length
// matches.
#[allow(unsafe_code)]
unsafe impl SocketAddrArg for VsockAddr {
    unsafe fn with_sockaddr<R>(
        &self,
        f: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R,
    ) -> R {
        let raw = libc::sockaddr_vm {
            svm_family: libc::AF_VSOCK as libc::sa_family_t,
            svm_reserved1: 0,
            svm_port: self.port,
            svm_cid: self.cid,
            svm_zero: [0; 4],
        };
        f(
            (&raw const raw).cast(),
            size_of::<libc::sockaddr_vm>() as SocketAddrLen,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_reads_back_as_written_and_another_family_is_none() {
        let addr = VsockAddr { cid: 3, port: 5640 };
        assert_eq!(VsockAddr::of(&addr.as_any()), Some(addr));
        let ip: std::net::SocketAddr = "[::1]:5640".parse().expect("an address");
        assert_eq!(VsockAddr::of(&ip.as_any()), None);
    }
}
