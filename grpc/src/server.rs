//! The socket, its connections, and the end of a server.

use std::convert::Infallible;
use std::fmt::Display;
use std::future::Future;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use command::{CommandResult, Failure, signals};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, watch};
use transports::{Addr, Listener};

use crate::authority::Connection;
use crate::{Request, Response};

/// Largest number of connections at a time. An orchestrator has one or a few.
const MAX_CONNECTIONS: usize = 64;

/// Threads that receive and send. Methods have threads of their own.
const THREADS: usize = 2;

/// Time until the next attempt after an error of accept(2). If there is no free descriptor, others
/// may be closed meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Time for the last reply to leave after a stop. Connections without a request in flight are
/// closed then: a client may have sent only a part of the handshake, or may no longer answer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The bounds that differ between programs. Each also has 64 connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest number of requests at a time on a connection.
    pub max_streams: u32,
    /// Largest number of threads for methods. Further calls wait for one.
    pub max_threads: usize,
    /// Time for requests in flight to end after a stop.
    pub stop_timeout: Duration,
}

/// Serves a Unix socket of mode 0600 at `address` until SIGTERM or SIGINT, and then finishes the
/// requests in flight. A second signal ends the process at once. Calls `ready` when clients may
/// connect, and `route` for each request. Replaces a socket that no process serves, and removes its
/// own at the end.
///
/// Returns an error if the socket cannot be served. Methods that do not end in time are left to the
/// end of the process.
pub fn run<F>(
    address: &Path,
    limits: Limits,
    ready: impl FnOnce(),
    route: impl Fn(Request) -> F + Clone + Send + Sync + 'static,
) -> CommandResult
where
    F: Future<Output = Response> + Send + 'static,
{
    let failed = |error: &dyn Display| Failure::new(format!("{}: {error}", address.display()));
    let (sender, stop) = watch::channel(false);
    let _signals = signals::on_signal(move || sender.send_modify(|stop| *stop = true), None)?;
    let listener = Listener::bind(&Addr::Unix(address.into())).map_err(|error| {
        let in_use = "another process serves this socket, or the path is no socket";
        match error.kind() {
            io::ErrorKind::AddrInUse => failed(&in_use),
            _ => failed(&error),
        }
    })?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(limits.max_threads)
        .enable_all()
        .build()
        .map_err(Failure::new)?;
    let served = runtime.block_on(async {
        let served = serve(&listener, limits, stop, route);
        ready();
        served.await
    });
    runtime.shutdown_background();
    served.map_err(|error| failed(&error))?;
    Ok(ExitCode::SUCCESS)
}

/// Serves connections until `stop` is true or closed, and waits for requests in flight.
async fn serve<F>(
    listener: &Listener,
    limits: Limits,
    mut stop: watch::Receiver<bool>,
    route: impl Fn(Request) -> F + Clone + Send + Sync + 'static,
) -> io::Result<()>
where
    F: Future<Output = Response> + Send + 'static,
{
    let socket = UnixListener::from(listener.socket()?);
    socket.set_nonblocking(true)?;
    let socket = tokio::net::UnixListener::from_std(socket)?;
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let stopped = stop.wait_for(|&stop| stop);
        let permit = connections.clone().acquire_owned();
        let accepted = async { (permit.await, socket.accept().await) };
        let (permit, accepted) = tokio::select! {
            _ = stopped => break,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let connection = connection(stream, limits, stop.clone(), route.clone());
                tokio::spawn(async {
                    connection.await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!("accept: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    let all = connections.acquire_many(MAX_CONNECTIONS as u32);
    if tokio::time::timeout(limits.stop_timeout, all)
        .await
        .is_err()
    {
        tracing::warn!("stopped with requests in flight");
    }
    Ok(())
}

/// Serves a connection until the peer closes it, or until the requests in flight at `stop` end.
async fn connection<F>(
    stream: UnixStream,
    limits: Limits,
    mut stop: watch::Receiver<bool>,
    route: impl Fn(Request) -> F,
) where
    F: Future<Output = Response> + Send + 'static,
{
    let (in_flight, mut requests) = watch::channel(0);
    let handle = service_fn(|request| {
        let in_flight = InFlight::new(in_flight.clone());
        let response = route(request);
        async move {
            let response = response.await;
            drop(in_flight);
            Ok::<_, Infallible>(response)
        }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.max_streams);
    let stream = TokioIo::new(Connection::new(stream));
    let mut connection = pin!(builder.serve_connection(stream, handle));
    let ended = tokio::select! {
        ended = &mut connection => Some(ended),
        () = async { drop(stop.wait_for(|&stop| stop).await) } => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection => ended,
                () = idle(&mut requests) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!("connection: {error}");
    }
}

/// Waits until no request of a connection has been in flight for [`CLOSE_TIMEOUT`].
async fn idle(requests: &mut watch::Receiver<usize>) {
    loop {
        // The sender is in use as long as the connection.
        let _ = requests.wait_for(|&requests| requests == 0).await;
        let busy = requests.wait_for(|&requests| requests > 0);
        if tokio::time::timeout(CLOSE_TIMEOUT, busy).await.is_err() {
            return;
        }
    }
}

/// A request in flight, counted until this is dropped.
struct InFlight(watch::Sender<usize>);

impl InFlight {
    fn new(requests: watch::Sender<usize>) -> InFlight {
        requests.send_modify(|requests| *requests += 1);
        InFlight(requests)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.send_modify(|requests| *requests -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::path::PathBuf;
    use std::sync::mpsc;

    use tonic::transport::{Channel, Endpoint};
    use tonic::{Code, Status};
    use tonic_prost::ProstCodec;

    use super::*;
    use crate::{MAX_REQUEST, immediate, stream, unary};

    const LIMITS: Limits = Limits {
        max_streams: 8,
        max_threads: 8,
        stop_timeout: Duration::from_secs(20),
    };

    /// A server in a directory of its own, and a runtime for its clients.
    struct Fixture {
        runtime: tokio::runtime::Runtime,
        path: PathBuf,
        stop: watch::Sender<bool>,
        served: tokio::task::JoinHandle<io::Result<()>>,
        _dir: tempfile::TempDir,
    }

    impl Fixture {
        fn new<F>(
            limits: Limits,
            route: impl Fn(Request) -> F + Clone + Send + Sync + 'static,
        ) -> Fixture
        where
            F: Future<Output = Response> + Send + 'static,
        {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("socket");
            let listener = Listener::bind(&Addr::Unix(path.clone())).expect("bound");
            let (stop, stopped) = watch::channel(false);
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            let served = runtime.spawn(async move {
                let route = route;
                serve(&listener, limits, stopped, route).await
            });
            Fixture {
                runtime,
                path,
                stop,
                served,
                _dir: dir,
            }
        }

        fn connect(&self) -> Channel {
            let path = self.path.clone();
            let connect = tower::service_fn(move |_| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            });
            let endpoint = Endpoint::from_static("http://localhost");
            let channel = endpoint.connect_with_connector(connect);
            self.runtime.block_on(channel).expect("connected")
        }

        /// Stops the server and waits for its end.
        fn stop(self) -> io::Result<()> {
            drop(self.stop);
            self.runtime.block_on(self.served).expect("no panic")
        }
    }

    /// Reads frames until each of `streams` has got one of headers or a reset, and returns the
    /// types of these.
    fn answers(from: &mut impl Read, streams: [u8; 2]) -> [u8; 2] {
        let mut found = [0; 2];
        while found.contains(&0) {
            let mut head = [0; 9];
            from.read_exact(&mut head).expect("a frame");
            let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            from.read_exact(&mut payload).expect("a payload");
            let at = streams.iter().position(|stream| *stream == head[8]);
            if let Some(at) = at.filter(|&at| found[at] == 0 && [1, 3].contains(&head[3])) {
                found[at] = head[3];
            }
        }
        found
    }

    /// The headers of gRPC's C core: the authority is the path of the socket, and later requests
    /// refer to that of the first.
    #[test]
    fn a_client_whose_authority_is_the_percent_encoded_socket_is_answered() {
        let fixture = Fixture::new(LIMITS, route);
        let mut client = std::os::unix::net::UnixStream::connect(&fixture.path).expect("connected");
        let field = |name: &[u8], value: &[u8]| {
            [&[0x40, name.len() as u8], name, &[value.len() as u8], value].concat()
        };
        let first = [
            vec![0x83, 0x86],
            field(b"content-type", b"application/grpc"),
            field(b"te", b"trailers"),
            field(b":path", b"/test/Name"),
            field(b":authority", b"%2Frun%2Fcsi%2Fcsi.sock"),
        ];
        // Pseudo-header fields come first.
        let [start, kind, te, path, authority] = first;
        let first = [start, path, authority, kind, te].concat();
        let second = vec![0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe];
        let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
        for (stream, block) in [(1, first), (3, second)] {
            // HEADERS with END_STREAM and END_HEADERS.
            sent.extend([0, 0, block.len() as u8, 1, 5, 0, 0, 0, stream]);
            sent.extend(block);
        }
        client.write_all(&sent).expect("sent");
        // HEADERS, and no RST_STREAM.
        assert_eq!(answers(&mut client, [1, 3]), [1, 1]);
        drop(client);
        fixture.stop().expect("served");
    }

    /// Messages of the tests are wrappers of prost: a string or a number in one field.
    async fn route(request: Request) -> Response {
        match request.uri().path() {
            "/test/Length" => unary(request, |text: String| Ok(text.len() as u64)).await,
            "/test/Refuse" => {
                unary(request, |text: String| {
                    Err::<u64, _>(Status::not_found(text))
                })
                .await
            }
            "/test/Panic" => unary(request, |_: String| -> Result<u64, _> { panic!() }).await,
            "/test/Name" => immediate(request, "name".to_string()).await,
            "/test/Bytes" => {
                stream(request, |text: String| {
                    Ok(text.bytes().map(u64::from).collect())
                })
                .await
            }
            _ => Status::unimplemented("no such method").into_http(),
        }
    }

    async fn call<A: prost::Message + Default + 'static>(
        channel: Channel,
        method: &'static str,
        text: &str,
    ) -> Result<A, Status> {
        let mut grpc = tonic::client::Grpc::new(channel);
        grpc.ready().await.expect("connected");
        let path = http::uri::PathAndQuery::from_static(method);
        let codec = ProstCodec::<String, A>::default();
        let request = tonic::Request::new(text.to_owned());
        let response = grpc.unary(request, path, codec).await;
        response.map(tonic::Response::into_inner)
    }

    #[test]
    fn results_and_errors_arrive() {
        let fixture = Fixture::new(LIMITS, route);
        let channel = fixture.connect();
        let length = |method, text: &str| {
            let called = call::<u64>(channel.clone(), method, text);
            let result = fixture.runtime.block_on(called);
            result.map_err(|status| (status.code(), status.message().to_owned()))
        };
        assert_eq!(length("/test/Length", "four"), Ok(4));
        let refused = Err((Code::NotFound, "no".to_owned()));
        assert_eq!(length("/test/Refuse", "no"), refused);
        let code = |method, text: &str| length(method, text).expect_err("an error").0;
        assert_eq!(code("/test/Panic", ""), Code::Internal);
        assert_eq!(code("/test/Other", ""), Code::Unimplemented);
        let large = "x".repeat(MAX_REQUEST + 1);
        assert_eq!(code("/test/Length", &large), Code::OutOfRange);
        assert_eq!(length("/test/Length", "four"), Ok(4), "after all of these");
        let name = call::<String>(channel.clone(), "/test/Name", "");
        assert_eq!(fixture.runtime.block_on(name).expect("answered"), "name");
    }

    #[test]
    fn a_stream_has_a_message_for_each_element() {
        let fixture = Fixture::new(LIMITS, route);
        let mut grpc = tonic::client::Grpc::new(fixture.connect());
        let bytes = async {
            grpc.ready().await.expect("connected");
            let path = http::uri::PathAndQuery::from_static("/test/Bytes");
            let request = tonic::Request::new("ab".to_owned());
            let codec = ProstCodec::<String, u64>::default();
            let streamed = grpc.server_streaming(request, path, codec).await;
            let mut replies = streamed.expect("answered").into_inner();
            let mut bytes = Vec::new();
            while let Some(byte) = replies.message().await.expect("received") {
                bytes.push(byte);
            }
            bytes
        };
        assert_eq!(fixture.runtime.block_on(bytes), [97, 98]);
    }

    #[test]
    fn a_stop_waits_for_the_requests_in_flight_for_a_time() {
        for (stop_timeout, answered) in [
            (Duration::from_secs(20), true),
            (Duration::from_millis(1), false),
        ] {
            let (started, starts) = mpsc::channel();
            let (release, released) = mpsc::channel::<()>();
            let released = Arc::new(std::sync::Mutex::new(released));
            let route = move |request| {
                let (started, released) = (started.clone(), released.clone());
                unary(request, move |_: String| {
                    started.send(()).expect("a receiver");
                    let _ = released.lock().expect("whole").recv();
                    Ok(1u64)
                })
            };
            let limits = Limits {
                stop_timeout,
                ..LIMITS
            };
            let fixture = Fixture::new(limits, route);
            let called = call::<u64>(fixture.connect(), "/test/Wait", "");
            let called = fixture.runtime.spawn(called);
            starts.recv().expect("started");
            let Fixture {
                runtime,
                stop,
                served,
                path,
                ..
            } = fixture;
            drop(stop);
            if answered {
                release.send(()).expect("a receiver");
            }
            let served = runtime.block_on(served).expect("no panic");
            served.expect("served");
            assert!(!path.exists(), "the socket is removed");
            drop(release);
            if answered {
                assert_eq!(runtime.block_on(called).expect("no panic").expect("one"), 1);
            }
            runtime.shutdown_background();
        }
    }

    #[test]
    fn a_stop_does_not_wait_for_silent_clients() {
        // The preface, and empty settings (RFC 9113, sections 3.4 and 6.5).
        let handshake = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        let fixture = Fixture::new(
            Limits {
                stop_timeout: Duration::from_secs(600),
                ..LIMITS
            },
            route,
        );
        let clients: Vec<_> = [0, 9, handshake.len()]
            .into_iter()
            .map(|len| {
                let client = std::os::unix::net::UnixStream::connect(&fixture.path);
                let mut client = client.expect("connected");
                client.write_all(&handshake[..len]).expect("sent");
                client
            })
            .collect();
        let length = call::<u64>(fixture.connect(), "/test/Length", "all are accepted");
        assert_eq!(fixture.runtime.block_on(length).expect("answered"), 16);
        let Fixture {
            runtime,
            stop,
            served,
            ..
        } = fixture;
        drop(stop);
        let served = async { tokio::time::timeout(Duration::from_secs(20), served).await };
        let served = runtime.block_on(served).expect("in time");
        served.expect("no panic").expect("served");
        drop(clients);
    }

    #[test]
    fn a_further_connection_waits_for_the_end_of_another() {
        let fixture = Fixture::new(LIMITS, route);
        let mut channels: Vec<_> = (0..MAX_CONNECTIONS).map(|_| fixture.connect()).collect();
        for channel in &channels {
            let called = call::<u64>(channel.clone(), "/test/Length", "a");
            assert_eq!(fixture.runtime.block_on(called).expect("answered"), 1);
        }
        let more = fixture.connect();
        let more = fixture
            .runtime
            .spawn(async { call::<u64>(more, "/test/Length", "ab").await });
        let first = call::<u64>(channels[0].clone(), "/test/Length", "a");
        assert_eq!(fixture.runtime.block_on(first).expect("answered"), 1);
        assert!(!more.is_finished());
        channels.pop();
        let more = fixture.runtime.block_on(more).expect("no panic");
        assert_eq!(more.expect("answered"), 2);
        drop(channels);
        fixture.stop().expect("served");
    }
}
