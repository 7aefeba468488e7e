//! Securing a connection before its use: RPC-with-TLS (RFC 9289).

use std::io::{self, ErrorKind};
use std::sync::Arc;

use ::nfs::client::start_tls;
use tls::{Connector, TlsFiles, TlsLink};
use transports::{Link, StreamLink};

use super::rpc_client::DialResult;

/// The TLS settings of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// The trusted CAs, and the client's certificate and key.
    pub files: TlsFiles,
}

impl TlsSettings {
    /// Parses the value of `xprtsec=`. The error states the expected form.
    pub(super) fn parse(security: &str, files: TlsFiles) -> Result<Option<TlsSettings>, String> {
        let shows = files.cert.is_some() && files.key.is_some();
        let is_incomplete = files.cert.is_some() != files.key.is_some();
        match security {
            "" | "none" if files == TlsFiles::default() => Ok(None),
            "" | "none" => Err("xprtsec=tls or mtls with tlsca=, tlscert= and tlskey=".into()),
            "tls" if !shows && !is_incomplete => Ok(Some(TlsSettings { files })),
            "tls" => Err("xprtsec=mtls with tlscert= and tlskey=".into()),
            "mtls" if shows => Ok(Some(TlsSettings { files })),
            "mtls" => Err("tlscert= and tlskey= with xprtsec=mtls".into()),
            _ => Err(format!("xprtsec=none, tls or mtls, not '{security}'")),
        }
    }
}

/// Secures `link`, which must be unused, after the server has accepted STARTTLS. `version` is the
/// NFS version of the probe.
pub fn establish_tls(link: StreamLink, connector: &Arc<Connector>, version: u32) -> DialResult {
    /// No other call is in flight.
    const XID: u32 = 1;
    let link = TlsLink::client(link, connector.clone());
    link.send(&start_tls::request(XID, version), true)?;
    let reply = receive_record(&link)?;
    match start_tls::is_granted(XID, &reply) {
        Ok(true) => {}
        Ok(false) => {
            let why = "the server offers no TLS";
            return Err(io::Error::new(ErrorKind::PermissionDenied, why));
        }
        Err(what) => return Err(io::Error::new(ErrorKind::InvalidData, what)),
    }
    link.start_tls()?;
    link.send(&start_tls::probe(XID, version), true)?;
    receive_record(&link)?;
    Ok(Box::new(link))
}

/// Receives one record. Bytes after it are an error, as data from before the handshake must not be
/// trusted.
fn receive_record(link: &dyn Link) -> io::Result<Vec<u8>> {
    let mut reply = Vec::new();
    let mut buf = [0; 256];
    loop {
        let len = start_tls::frame(&reply)
            .map_err(|what| io::Error::new(ErrorKind::InvalidData, what))?;
        match len {
            Some(len) if len == reply.len() => return Ok(reply),
            Some(len) if len < reply.len() => {
                let why = "unexpected bytes after the reply to AUTH_TLS";
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
