//! Securing a connection before its use: RPC-with-TLS (RFC 9289).

use std::io::{self, ErrorKind};
use std::sync::Arc;

use ::nfs::client::start_tls;
use tls::{Connector, Files, TlsLink};
use transports::{Link, StreamLink};

use super::mount::Dialled;

/// The TLS settings of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Secure {
    /// The trusted CAs, and the client's certificate and key.
    pub files: Files,
}

impl Secure {
    /// Parses the value of `xprtsec=`. The error states the expected form.
    pub(super) fn asked(security: &str, files: Files) -> Result<Option<Secure>, String> {
        let shows = files.cert.is_some() && files.key.is_some();
        let half = files.cert.is_some() != files.key.is_some();
        match security {
            "" | "none" if files == Files::default() => Ok(None),
            "" | "none" => Err("xprtsec=tls or mtls with tlsca=, tlscert= and tlskey=".into()),
            "tls" if !shows && !half => Ok(Some(Secure { files })),
            "tls" => Err("xprtsec=mtls with tlscert= and tlskey=".into()),
            "mtls" if shows => Ok(Some(Secure { files })),
            "mtls" => Err("tlscert= and tlskey= with xprtsec=mtls".into()),
            _ => Err(format!("xprtsec=none, tls or mtls, not '{security}'")),
        }
    }
}

/// Secures `link`, which must be unused, after the server has accepted STARTTLS. `version` is the
/// NFS version of the probe.
pub fn secured(link: StreamLink, connector: &Arc<Connector>, version: u32) -> Dialled {
    /// No other call is in flight.
    const XID: u32 = 1;
    let link = TlsLink::client(link, connector.clone());
    link.send(&start_tls::request(XID, version), true)?;
    let reply = record(&link)?;
    match start_tls::is_granted(XID, &reply) {
        Ok(true) => {}
        Ok(false) => {
            let why = "the server offers no TLS";
            return Err(io::Error::new(ErrorKind::PermissionDenied, why));
        }
        Err(what) => return Err(io::Error::new(ErrorKind::InvalidData, what)),
    }
    link.secure()?;
    link.send(&start_tls::probe(XID, version), true)?;
    record(&link)?;
    Ok(Box::new(link))
}

/// Receives one record. Bytes after it are an error, as data from before the handshake must not be
/// trusted.
fn record(link: &dyn Link) -> io::Result<Vec<u8>> {
    let mut reply = Vec::new();
    let mut buf = [0; 256];
    loop {
        let len = start_tls::frame(&reply)
            .map_err(|what| io::Error::new(ErrorKind::InvalidData, what))?;
        match len {
            Some(len) if len == reply.len() => return Ok(reply),
            Some(len) if len < reply.len() => {
                let why = "expected nothing behind the reply to a request for TLS";
                return Err(io::Error::new(ErrorKind::InvalidData, why));
            }
            _ => {}
        }
        let got = link.recv(&mut buf, true)?;
        if got == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        reply.extend_from_slice(&buf[..got]);
    }
}
