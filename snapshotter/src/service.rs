//! The gRPC service `containerd.services.snapshots.v1.Snapshots`: calls of [`Snapshotter`] by the
//! path of a request.

use std::sync::Arc;

use grpc::{Request, Response};
use tonic::Status;

use crate::Snapshotter;
use crate::api::{
    CleanupRequest, CommitRequest, CreateRequest, Empty, InfoResponse, KeyRequest, ListRequest,
    ListResponse, MountsResponse, UpdateRequest, UsageResponse,
};
use crate::error::{Error, Result};

/// Snapshots in a message of a list, as many as containerd puts into one.
const LIST_CHUNK: usize = 100;

/// Serves one request.
pub async fn route(snapshotter: Arc<Snapshotter>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let method = path.strip_prefix("/containerd.services.snapshots.v1.Snapshots/");
    /// Calls one of the functions below.
    macro_rules! unary {
        ($function:ident) => {
            grpc::unary(request, move |message| {
                $function(&snapshotter, message).map_err(status)
            })
            .await
        };
    }
    match method.unwrap_or_default() {
        "Prepare" => unary!(prepare),
        "View" => unary!(view),
        "Mounts" => unary!(mounts),
        "Commit" => unary!(commit),
        "Remove" => unary!(remove),
        "Stat" => unary!(stat),
        "Update" => unary!(update),
        "List" => {
            let list = move |message| list(&snapshotter, message).map_err(status);
            grpc::stream(request, list).await
        }
        "Usage" => unary!(usage),
        "Cleanup" => unary!(cleanup),
        _ => Status::unimplemented("no such method").into_http(),
    }
}

fn status(error: Error) -> Status {
    tracing::debug!("{error}");
    error.into()
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

fn list(snapshotter: &Snapshotter, request: ListRequest) -> Result<Vec<ListResponse>> {
    let infos = snapshotter.list(&request.filters)?;
    let chunks = infos.chunks(LIST_CHUNK);
    Ok(chunks
        .map(|chunk| ListResponse { info: chunk.into() })
        .collect())
}

fn usage(snapshotter: &Snapshotter, request: KeyRequest) -> Result<UsageResponse> {
    snapshotter.usage(&request.key)
}

fn cleanup(snapshotter: &Snapshotter, _: CleanupRequest) -> Result<Empty> {
    snapshotter.cleanup()?;
    Ok(Empty {})
}
