//! The gRPC service `containerd.services.snapshots.v1.Snapshots`: calls of [`Snapshotter`] by the
//! path of a request.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::stream::{self, Stream};
use prost::Message;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

use crate::Snapshotter;
use crate::api::{
    CleanupRequest, CommitRequest, CreateRequest, Empty, Info, InfoResponse, KeyRequest,
    ListRequest, ListResponse, MountsResponse, UpdateRequest, UsageResponse,
};
use crate::error::{Error, Result};

/// Snapshots in a message of a list, as many as containerd puts into one.
const LIST_CHUNK: usize = 100;

/// Largest request in bytes: labels of the maximum size, and names.
const MAX_REQUEST: usize = 1 << 20;

/// Serves one request.
pub(crate) async fn serve<B>(
    snapshotter: Arc<Snapshotter>,
    request: http::Request<B>,
) -> http::Response<Body>
where
    B: http_body::Body + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
{
    let method = request
        .uri()
        .path()
        .strip_prefix("/containerd.services.snapshots.v1.Snapshots/");
    match method.unwrap_or_default() {
        "Prepare" => unary(snapshotter, request, prepare).await,
        "View" => unary(snapshotter, request, view).await,
        "Mounts" => unary(snapshotter, request, mounts).await,
        "Commit" => unary(snapshotter, request, commit).await,
        "Remove" => unary(snapshotter, request, remove).await,
        "Stat" => unary(snapshotter, request, stat).await,
        "Update" => unary(snapshotter, request, update).await,
        "List" => {
            let call = Call {
                snapshotter,
                run: list,
            };
            grpc().server_streaming(Listing(call), request).await
        }
        "Usage" => unary(snapshotter, request, usage).await,
        "Cleanup" => unary(snapshotter, request, cleanup).await,
        _ => Status::unimplemented("no such method").into_http(),
    }
}

fn grpc<Req, Res>() -> Grpc<ProstCodec<Res, Req>>
where
    Req: Message + Default + Send + 'static,
    Res: Message + Default + Send + 'static,
{
    Grpc::new(ProstCodec::default()).max_decoding_message_size(MAX_REQUEST)
}

async fn unary<Req, Res, B>(
    snapshotter: Arc<Snapshotter>,
    request: http::Request<B>,
    run: fn(&Snapshotter, Req) -> Result<Res>,
) -> http::Response<Body>
where
    Req: Message + Default + Send + 'static,
    Res: Message + Default + Send + 'static,
    B: http_body::Body + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
{
    grpc().unary(Call { snapshotter, run }, request).await
}

/// A method of the service.
#[derive(Clone)]
struct Call<Req, Res> {
    snapshotter: Arc<Snapshotter>,
    run: fn(&Snapshotter, Req) -> Result<Res>,
}

type Reply<T> = Pin<Box<dyn Future<Output = std::result::Result<T, Status>> + Send>>;

impl<Req: Send + 'static, Res: Send + 'static> Call<Req, Res> {
    /// Runs the method on a thread that may block.
    fn reply(&self, request: Req) -> Reply<Res> {
        let Call { snapshotter, run } = self;
        let (snapshotter, run) = (snapshotter.clone(), *run);
        Box::pin(async move {
            let result = tokio::task::spawn_blocking(move || run(&snapshotter, request)).await;
            let result = result.map_err(|_| Status::internal("the operation panicked"))?;
            result.map_err(|error| {
                tracing::debug!("{error}");
                error.into()
            })
        })
    }
}

impl<Req: Send + 'static, Res: Send + 'static> Service<Request<Req>> for Call<Req, Res> {
    type Response = Response<Res>;
    type Error = Status;
    type Future = Reply<Response<Res>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Req>) -> Self::Future {
        let reply = self.reply(request.into_inner());
        Box::pin(async { reply.await.map(Response::new) })
    }
}

/// The method with a stream of replies.
struct Listing(Call<ListRequest, Vec<Info>>);

type Chunks = Pin<Box<dyn Stream<Item = std::result::Result<ListResponse, Status>> + Send>>;

impl Service<Request<ListRequest>> for Listing {
    type Response = Response<Chunks>;
    type Error = Status;
    type Future = Reply<Response<Chunks>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ListRequest>) -> Self::Future {
        let reply = self.0.reply(request.into_inner());
        Box::pin(async {
            let infos = reply.await?;
            let chunks: Vec<_> = infos
                .chunks(LIST_CHUNK)
                .map(|chunk| Ok(ListResponse { info: chunk.into() }))
                .collect();
            Ok(Response::new(Box::pin(stream::iter(chunks)) as Chunks))
        })
    }
}

fn prepare(snapshotter: &Snapshotter, request: CreateRequest) -> Result<MountsResponse> {
    let CreateRequest {
        key,
        parent,
        labels,
        ..
    } = request;
    tracing::debug!("prepare {key:?} with parent {parent:?}");
    let mounts = snapshotter.prepare(&key, &parent, &labels)?;
    Ok(MountsResponse { mounts })
}

fn view(snapshotter: &Snapshotter, request: CreateRequest) -> Result<MountsResponse> {
    let CreateRequest {
        key,
        parent,
        labels,
        ..
    } = request;
    tracing::debug!("view {key:?} with parent {parent:?}");
    let mounts = snapshotter.view(&key, &parent, &labels)?;
    Ok(MountsResponse { mounts })
}

fn mounts(snapshotter: &Snapshotter, request: KeyRequest) -> Result<MountsResponse> {
    tracing::debug!("mounts {:?}", request.key);
    let mounts = snapshotter.mounts(&request.key)?;
    Ok(MountsResponse { mounts })
}

fn commit(snapshotter: &Snapshotter, request: CommitRequest) -> Result<Empty> {
    let CommitRequest {
        key,
        name,
        parent,
        labels,
        ..
    } = request;
    tracing::debug!("commit {key:?} as {name:?}");
    snapshotter.commit(&key, &name, &parent, &labels)?;
    Ok(Empty {})
}

fn remove(snapshotter: &Snapshotter, request: KeyRequest) -> Result<Empty> {
    tracing::debug!("remove {:?}", request.key);
    snapshotter.remove(&request.key)?;
    Ok(Empty {})
}

fn stat(snapshotter: &Snapshotter, request: KeyRequest) -> Result<InfoResponse> {
    let info = Some(snapshotter.stat(&request.key)?);
    Ok(InfoResponse { info })
}

fn update(snapshotter: &Snapshotter, request: UpdateRequest) -> Result<InfoResponse> {
    let info = request
        .info
        .ok_or_else(|| Error::invalid("expected a snapshot to update"))?;
    let paths = request.update_mask.unwrap_or_default().paths;
    let info = Some(snapshotter.update(&info.name, &info.labels, &paths)?);
    Ok(InfoResponse { info })
}

fn list(snapshotter: &Snapshotter, request: ListRequest) -> Result<Vec<Info>> {
    snapshotter.list(&request.filters)
}

fn usage(snapshotter: &Snapshotter, request: KeyRequest) -> Result<UsageResponse> {
    snapshotter.usage(&request.key)
}

fn cleanup(snapshotter: &Snapshotter, _: CleanupRequest) -> Result<Empty> {
    snapshotter.cleanup()?;
    Ok(Empty {})
}
