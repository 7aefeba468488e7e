//! The portmapper: reports the ports of the programs served here (RFC 1833). All programs share one
//! port.
//!
//! Deliberately absent: SET and UNSET, because no other service registers here, and CALLIT, which
//! makes calls on behalf of strangers.

use vfs::Support;

use super::{CallError, RequestContext, Server};
use crate::portmap::{Binding, Mapping, PORT, Procedure, TCP, UDP};
use crate::rpc::{CallRejection, program};
use crate::v3::List;

/// The programs served and their versions. NFS_ACL is reported only if the source has ACLs.
const SERVED: [(u32, u32); 11] = [
    (program::PORTMAP, 2),
    (program::PORTMAP, 3),
    (program::PORTMAP, 4),
    (program::NFS, 3),
    (program::NFS, 4),
    (program::NFS_ACL, 3),
    (program::MOUNT, 3),
    (program::NLM, 4),
    (program::NSM, 1),
    (program::RQUOTA, 1),
    (program::RQUOTA, 2),
];

/// Serves a portmapper call.
pub(super) fn serve(
    request: &mut RequestContext<'_>,
    version: u32,
    procedure: u32,
) -> Result<(), CallError> {
    let procedure = Procedure::from_number(procedure).ok_or(CallRejection::ProcedureUnavailable)?;
    let server = request.server;
    let port = |program, version, protocol| port(server, program, version, protocol);
    match (procedure, version) {
        (Procedure::Null, _) => Ok(()),
        (Procedure::GetPort, 2) => request.serve(|_, mapping: Mapping| {
            let port = port(mapping.program, Some(mapping.version), mapping.protocol);
            Ok(u32::from(port))
        }),
        (Procedure::GetPort, _) => {
            let binding: Binding<'_> = request.decode()?;
            let protocol = match binding.netid {
                b"tcp" | b"tcp6" => TCP,
                b"udp" | b"udp6" => UDP,
                _ => 0,
            };
            // The version is ignored, as in rpcbind: the program itself reports its versions.
            let address = match port(binding.program, None, protocol) {
                0 => Vec::new(),
                port => address(binding.address, binding.netid, port),
            };
            request.answer(&address.as_slice());
            Ok(())
        }
        (Procedure::Dump, 2) => {
            let mut list = Vec::new();
            for protocol in [TCP, UDP] {
                list.extend(SERVED.into_iter().filter_map(|(program, version)| {
                    let port = port(program, Some(version), protocol);
                    (port != 0).then_some(Mapping {
                        program,
                        version,
                        protocol,
                        port: port.into(),
                    })
                }));
            }
            request.answer(&List(list));
            Ok(())
        }
        (Procedure::Dump, _) => {
            let mut list = Vec::new();
            for (netid, protocol) in [("tcp", TCP), ("udp", UDP)] {
                for (program, version) in SERVED {
                    match port(program, Some(version), protocol) {
                        0 => {}
                        port => list.push((program, version, netid, address(b"", b"", port))),
                    }
                }
            }
            let bindings = list
                .iter()
                .map(|(program, version, netid, address)| Binding {
                    program: *program,
                    version: *version,
                    netid: netid.as_bytes(),
                    address,
                    owner: b"barge",
                });
            request.answer(&List(bindings.collect()));
            Ok(())
        }
    }
}

/// Returns the port of a program; 0 if it is not served.
fn port(server: &Server, program: u32, version: Option<u32>, protocol: u32) -> u16 {
    let ports = server.options.ports.unwrap_or_default();
    let is_served = SERVED
        .iter()
        .any(|&(number, has)| number == program && version.is_none_or(|version| version == has))
        && (program != program::NFS_ACL || server.capabilities.acl != Support::None);
    match protocol {
        TCP | UDP if is_served && program == program::PORTMAP => PORT,
        TCP if is_served => ports.tcp,
        UDP if is_served && ![program::NFS, program::NFS_ACL].contains(&program) => ports.udp,
        _ => 0,
    }
}

/// Returns the universal address of `port` at the host of `known`, the address by which the caller
/// knows this server; at the wildcard address if there is none.
fn address(known: &[u8], netid: &[u8], port: u16) -> Vec<u8> {
    let parts = known.rsplitn(3, |&byte| byte == b'.');
    let any: &[u8] = if netid.ends_with(b"6") {
        b"::"
    } else {
        b"0.0.0.0"
    };
    let host = parts
        .last()
        .filter(|_| known.contains(&b'.'))
        .unwrap_or(any);
    let [high, low] = port.to_be_bytes();
    [host, format!(".{high}.{low}").as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_the_one_that_the_caller_knows_with_another_port() {
        let of = |known: &str, netid: &str| {
            String::from_utf8(address(known.as_bytes(), netid.as_bytes(), 2049)).expect("text")
        };
        assert_eq!(of("10.0.2.2.0.111", "tcp"), "10.0.2.2.8.1");
        assert_eq!(of("", "tcp"), "0.0.0.0.8.1");
        assert_eq!(of("fe80::1.0.111", "tcp6"), "fe80::1.8.1");
        assert_eq!(of("", "udp6"), "::.8.1");
    }
}
