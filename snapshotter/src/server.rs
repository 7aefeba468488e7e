//! The Unix socket, and its connections: HTTP/2 without TLS.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustix::fs::Mode;
use rustix::process::umask;
use tokio::sync::{Semaphore, watch};

use crate::Snapshotter;
use crate::service;

/// Largest number of connections at a time. containerd has one.
const MAX_CONNECTIONS: usize = 64;

/// Largest number of requests at a time on a connection.
const MAX_STREAMS: u32 = 128;

/// Time for requests in flight to end after a stop. A layer takes a minute at most.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// A listening socket that only this user can connect to. Its file is removed at the end.
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Listens at `path`, and replaces the socket of a process that has ended. Creates the
    /// directory, for this user alone. Must be called before other threads create files, because it
    /// changes the umask meanwhile. Returns `AddrInUse` if a process listens there, and
    /// `AlreadyExists` if the path is no socket.
    pub fn bind(path: &Path) -> io::Result<Socket> {
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Ok(found) if !found.file_type().is_socket() => {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            Ok(_) if UnixStream::connect(path).is_ok() => {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            Ok(_) => fs::remove_file(path)?,
            Err(error) => return Err(error),
        }
        // The socket never has another mode than 0600.
        let before = umask(Mode::from_raw_mode(0o177));
        let listener = UnixListener::bind(path);
        umask(before);
        let listener = listener?;
        listener.set_nonblocking(true)?;
        Ok(Socket {
            listener,
            path: path.into(),
        })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // The next start replaces it otherwise.
        let _ = fs::remove_file(&self.path);
    }
}

/// Serves connections until `stop` is true or closed. Requests in flight then have ten seconds.
/// Returns an error if the runtime cannot use the socket.
pub async fn serve(
    socket: &Socket,
    snapshotter: Arc<Snapshotter>,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let listener = tokio::net::UnixListener::from_std(socket.listener.try_clone()?)?;
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let stopped = stop.wait_for(|&stop| stop);
        let permit = connections.clone().acquire_owned();
        let accepted = async { (permit.await, listener.accept().await) };
        let (permit, accepted) = tokio::select! {
            _ = stopped => break,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let connection = connection(stream, snapshotter.clone(), stop.clone());
                tokio::spawn(async {
                    connection.await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!("accept: {error}");
                // Out of descriptors, for example: others may end meanwhile.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    let all = connections.acquire_many(MAX_CONNECTIONS as u32);
    if tokio::time::timeout(STOP_TIMEOUT, all).await.is_err() {
        tracing::warn!("stopped with requests in flight");
    }
    Ok(())
}

/// Serves a connection until the peer closes it, or until the requests in flight at `stop` end.
async fn connection(
    stream: tokio::net::UnixStream,
    snapshotter: Arc<Snapshotter>,
    mut stop: watch::Receiver<bool>,
) {
    let handle = service_fn(move |request| {
        let reply = service::serve(snapshotter.clone(), request);
        async { Ok::<_, std::convert::Infallible>(reply.await) }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), handle));
    let ended = tokio::select! {
        ended = &mut connection => Some(ended),
        () = async { drop(stop.wait_for(|&stop| stop).await) } => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!("connection: {error}");
    }
}
