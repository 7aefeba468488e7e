//! Methods: a request is decoded, a function is called, and its result is encoded.

use std::future::Future;
use std::pin::Pin;

use futures_util::stream::{self as streams, Stream};
use prost::Message;
use tonic::Status;
use tonic::server::{Grpc, ServerStreamingService, UnaryService};
use tonic_prost::ProstCodec;

use crate::{Request, Response};

/// Largest message of a request in bytes: names, and labels or attributes of the maximum size.
pub const MAX_REQUEST: usize = 1 << 20;

/// Answers with the result of `method`, which runs on a thread that may block. It continues if the
/// client cancels the call, so that an operation ends in a known state.
pub async fn unary<Q, A, M>(request: Request, method: M) -> Response
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
    M: FnOnce(Q) -> Result<A, Status> + Send + 'static,
{
    let method = Method::new(|message| blocking(move || method(message)));
    grpc::<Q, A>().unary(method, request).await
}

/// Does the same, and sends each element of the result as a message.
pub async fn stream<Q, A, M>(request: Request, method: M) -> Response
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
    M: FnOnce(Q) -> Result<Vec<A>, Status> + Send + 'static,
{
    let method = Method::new(|message| blocking(move || method(message)));
    grpc::<Q, A>().server_streaming(method, request).await
}

/// Answers a request without fields with `reply`. It waits for no thread, however many operations
/// are in flight.
pub async fn immediate<A: Message + Default + 'static>(request: Request, reply: A) -> Response {
    let method = Method::new(|(): ()| async { Ok(reply) });
    grpc::<(), A>().unary(method, request).await
}

fn grpc<Q, A>() -> Grpc<ProstCodec<A, Q>>
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
{
    Grpc::new(ProstCodec::default()).max_decoding_message_size(MAX_REQUEST)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Status::internal("the operation failed unexpectedly")))
}

/// A method that is called once.
struct Method<M>(Option<M>);

type Reply<T> = Pin<Box<dyn Future<Output = Result<tonic::Response<T>, Status>> + Send>>;

type Replies<A> = Pin<Box<dyn Stream<Item = Result<A, Status>> + Send>>;

impl<M> Method<M> {
    fn new<Q, F: Future>(method: M) -> Method<M>
    where
        M: FnOnce(Q) -> F,
    {
        Method(Some(method))
    }

    fn reply<Q, T, F>(&mut self, request: tonic::Request<Q>) -> Reply<T>
    where
        M: FnOnce(Q) -> F,
        F: Future<Output = Result<T, Status>> + Send + 'static,
    {
        match self.0.take() {
            Some(method) => {
                let reply = method(request.into_inner());
                Box::pin(async { reply.await.map(tonic::Response::new) })
            }
            None => Box::pin(async { Err(Status::internal("a method was called twice")) }),
        }
    }
}

impl<Q, A, M, F> UnaryService<Q> for Method<M>
where
    M: FnOnce(Q) -> F,
    F: Future<Output = Result<A, Status>> + Send + 'static,
{
    type Response = A;
    type Future = Reply<A>;

    fn call(&mut self, request: tonic::Request<Q>) -> Reply<A> {
        self.reply(request)
    }
}

impl<Q, A, M, F> ServerStreamingService<Q> for Method<M>
where
    A: Send + 'static,
    M: FnOnce(Q) -> F,
    F: Future<Output = Result<Vec<A>, Status>> + Send + 'static,
{
    type Response = A;
    type ResponseStream = Replies<A>;
    type Future = Reply<Replies<A>>;

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        let reply = self.reply(request);
        Box::pin(async {
            let messages = reply.await?.into_inner().into_iter().map(Ok);
            let replies: Replies<A> = Box::pin(streams::iter(messages));
            Ok(tonic::Response::new(replies))
        })
    }
}
