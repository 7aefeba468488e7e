//! The certificates and trust anchors of a side, from PEM files.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// The paths of PEM files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate chain: the certificate, then intermediate ones.
    pub cert: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
    /// The authorities whose certificates are trusted.
    pub ca: Option<PathBuf>,
}

/// A function that reads a file, such as [`std::fs::read`].
pub type ReadFile = Box<dyn Fn(&Path) -> io::Result<Vec<u8>> + Send + Sync>;

/// The authentication that a server requires of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// A client certificate is optional, but must be valid.
    Optional,
    /// A client certificate is required.
    Required,
}

/// The error for unusable files, with the file and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesError(String);

impl fmt::Display for FilesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for FilesError {}

impl FilesError {
    fn at(path: &Path, why: impl fmt::Display) -> FilesError {
        FilesError(format!("{}: {why}", path.display()))
    }
}

/// A [`ReadFile`] by reference.
type ReadFn<'a> = &'a dyn Fn(&Path) -> io::Result<Vec<u8>>;

/// The server side of TLS: each new connection uses the contents of the files when last read.
pub struct Acceptor {
    files: TlsFiles,
    read: ReadFile,
    client_auth: ClientAuth,
    protocol: &'static [u8],
    config: Mutex<Arc<ServerConfig>>,
}

impl Acceptor {
    /// Reads `files` with `read`: the certificate and its key are required. Without authorities no
    /// client certificate is requested or trusted. `protocol` is the ALPN name of the protocol
    /// inside: a client that offers only others is refused.
    pub fn open(
        files: TlsFiles,
        read: ReadFile,
        demand: ClientAuth,
        protocol: &'static [u8],
    ) -> Result<Acceptor, FilesError> {
        let config = Mutex::new(server(&files, &read, demand, protocol)?);
        Ok(Acceptor {
            files,
            read,
            client_auth: demand,
            protocol,
            config,
        })
    }

    /// Reads the files again, for later connections. Unusable files change nothing.
    pub fn reload(&self) -> Result<(), FilesError> {
        let config = server(&self.files, &self.read, self.client_auth, self.protocol)?;
        *self.config.lock() = config;
        Ok(())
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.config.lock().clone()
    }
}

/// The client side of TLS, for one server.
pub struct Connector {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) name: ServerName<'static>,
}

impl Connector {
    /// Creates a connector for the server whose certificate names `host`, a name or an address,
    /// signed by one of the authorities in `files` or, by default, of the system. A certificate
    /// with its key is sent to a server that requests one. `protocol` is the same as in
    /// [`Acceptor::open`].
    pub fn open(files: &TlsFiles, host: &str, protocol: &[u8]) -> Result<Connector, FilesError> {
        let name = ServerName::try_from(host)
            .map_err(|why| FilesError(format!("{host}: {why}")))?
            .to_owned();
        let roots = match &files.ca {
            Some(ca) => roots(ca, &|path| fs::read(path))?,
            None => system_roots()?,
        };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|why| FilesError(why.to_string()))?
            .with_root_certificates(roots);
        let mut config = match identity(files, &|path| fs::read(path))? {
            None => builder.with_no_client_auth(),
            Some((cert, chain, key)) => builder
                .with_client_auth_cert(chain, key)
                .map_err(|why| FilesError::at(cert, why))?,
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Connector {
            config: Arc::new(config),
            name,
        })
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn server(
    files: &TlsFiles,
    read: ReadFn<'_>,
    demand: ClientAuth,
    protocol: &[u8],
) -> Result<Arc<ServerConfig>, FilesError> {
    let (cert, chain, key) = identity(files, read)?
        .ok_or_else(|| FilesError("expected a certificate and its key".into()))?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|why| FilesError(why.to_string()))?;
    let builder = match &files.ca {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let clients =
                WebPkiClientVerifier::builder_with_provider(roots(ca, read)?.into(), provider());
            let clients = match demand {
                ClientAuth::Optional => clients.allow_unauthenticated(),
                ClientAuth::Required => clients,
            };
            let clients = clients.build().map_err(|why| FilesError::at(ca, why))?;
            builder.with_client_cert_verifier(clients)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|why| FilesError::at(cert, why))?;
    config.alpn_protocols = vec![protocol.to_vec()];
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

type Identity<'a> = (
    &'a Path,
    Vec<CertificateDer<'static>>,
    PrivateKeyDer<'static>,
);

/// Returns the certificate chain and key to send, with the certificate's path.
fn identity<'a>(files: &'a TlsFiles, read: ReadFn<'_>) -> Result<Option<Identity<'a>>, FilesError> {
    match (&files.cert, &files.key) {
        (None, None) => Ok(None),
        (Some(cert), Some(key)) => {
            let chain = certificates(cert, read)?;
            let text = read(key).map_err(|why| FilesError::at(key, why))?;
            let key = PrivateKeyDer::from_pem_slice(&text)
                .map_err(|why| FilesError::at(key, format!("expected a private key: {why}")))?;
            Ok(Some((cert, chain, key)))
        }
        (Some(one), None) | (None, Some(one)) => Err(FilesError::at(
            one,
            "expected a certificate and its key, got one of them",
        )),
    }
}

fn roots(ca: &Path, read: ReadFn<'_>) -> Result<RootCertStore, FilesError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca, read)? {
        roots
            .add(certificate)
            .map_err(|why| FilesError::at(ca, why))?;
    }
    Ok(roots)
}

fn certificates(path: &Path, read: ReadFn<'_>) -> Result<Vec<CertificateDer<'static>>, FilesError> {
    let none =
        |why: &dyn fmt::Display| FilesError::at(path, format!("expected certificates: {why}"));
    let text = read(path).map_err(|why| none(&why))?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|why| none(&why))?;
    match all.is_empty() {
        true => Err(none(&"the file has none")),
        false => Ok(all),
    }
}

fn system_roots() -> Result<RootCertStore, FilesError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    match roots.is_empty() {
        true => Err(FilesError(
            "this system trusts no certificate authority: name one".into(),
        )),
        false => Ok(roots),
    }
}
