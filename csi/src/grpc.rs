//! The services over gRPC: decodes requests, runs them on threads that may block, and encodes
//! responses.
//!
//! tonic does the protocol. The methods are a table here rather than generated code, which takes no
//! compiler of protocol buffers.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use prost::Message;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

use crate::controller::Controller;
use crate::node::{Node, not_responding};
use crate::proto::{
    BoolValue, Capability, Empty, GetPluginCapabilitiesResponse, GetPluginInfoResponse,
    NodeGetVolumeHealthRequest, NodeGetVolumeHealthResponse, NodeGetVolumeStatsRequest,
    NodeGetVolumeStatsResponse, PluginCapability, PluginService, ProbeResponse,
};

/// The largest request, bytes.
const REQUEST: usize = 1 << 20;

/// The most time for a query of a volume's usage or health.
const QUERY: Duration = Duration::from_secs(10);

/// The plugin: all services. Clones share it.
#[derive(Clone)]
pub struct Plugin(Arc<Services>);

/// The services of the plugin.
pub struct Services {
    /// Name of the plugin in the orchestrator.
    pub name: String,
    /// The controller service.
    pub controller: Controller,
    /// The node service.
    pub node: Node,
}

impl Plugin {
    /// Creates the plugin.
    pub fn new(services: Services) -> Plugin {
        Plugin(Arc::new(services))
    }

    fn info(&self) -> GetPluginInfoResponse {
        GetPluginInfoResponse {
            name: self.0.name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").into(),
        }
    }
}

fn plugin_capabilities() -> GetPluginCapabilitiesResponse {
    let kind = PluginService::ControllerService.into();
    GetPluginCapabilitiesResponse {
        capabilities: vec![PluginCapability {
            service: Some(Capability { kind }),
        }],
    }
}

impl Service<http::Request<Body>> for Plugin {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let plugin = self.clone();
        Box::pin(async move { Ok(plugin.route(request).await) })
    }
}

impl Plugin {
    async fn route(self, request: http::Request<Body>) -> http::Response<Body> {
        let path = request.uri().path().to_owned();
        let Some(method) = path.strip_prefix("/csi.v1.") else {
            return Status::unimplemented("unknown service").into_http();
        };
        tracing::debug!("{}", method.escape_debug());
        // A method that may block, by the service and the function of it.
        macro_rules! blocking {
            ($service:ident, $function:ident) => {
                answer(request, move |message| {
                    blocking(move || self.0.$service.$function(message))
                })
                .await
            };
        }
        macro_rules! immediate {
            ($response:expr) => {
                answer(request, async move |_: Empty| Ok($response)).await
            };
        }
        match method {
            "Identity/GetPluginInfo" => immediate!(self.info()),
            "Identity/GetPluginCapabilities" => immediate!(plugin_capabilities()),
            "Identity/Probe" => immediate!(ProbeResponse {
                ready: Some(BoolValue { value: true }),
            }),
            "Controller/ControllerGetCapabilities" => immediate!(self.0.controller.capabilities()),
            "Controller/CreateVolume" => blocking!(controller, create),
            "Controller/DeleteVolume" => blocking!(controller, delete),
            "Controller/ValidateVolumeCapabilities" => blocking!(controller, validate),
            "Node/NodeGetCapabilities" => immediate!(self.0.node.capabilities()),
            "Node/NodeGetInfo" => immediate!(self.0.node.info()),
            "Node/NodeStageVolume" => blocking!(node, stage),
            "Node/NodeUnstageVolume" => blocking!(node, unstage),
            "Node/NodePublishVolume" => blocking!(node, publish),
            "Node/NodeUnpublishVolume" => blocking!(node, unpublish),
            "Node/NodeGetVolumeStats" => answer(request, |message| self.stats(message)).await,
            "Node/NodeGetVolumeHealth" => answer(request, |message| self.health(message)).await,
            _ => Status::unimplemented("unsupported method").into_http(),
        }
    }

    async fn stats(
        self,
        request: NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, Status> {
        let query = blocking(move || self.0.node.stats(request));
        let late = |_| Status::deadline_exceeded("the file system does not answer");
        tokio::time::timeout(QUERY, query).await.map_err(late)?
    }

    async fn health(
        self,
        request: NodeGetVolumeHealthRequest,
    ) -> Result<NodeGetVolumeHealthResponse, Status> {
        let Some(operation) = self.0.node.start_health_query(&request)? else {
            return Ok(not_responding(&request));
        };
        let copy = request.clone();
        let query = blocking(move || {
            let _operation = operation;
            self.0.node.health(&copy)
        });
        match tokio::time::timeout(QUERY, query).await {
            Ok(result) => result,
            Err(_) => Ok(not_responding(&request)),
        }
    }
}

/// Runs `work` on a thread that may block. It continues if the client cancels the call, so that an
/// operation ends in a known state.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Status::internal("the operation failed unexpectedly")))
}

/// Decodes one request, calls `method`, and encodes its response.
async fn answer<Q, A, M, F>(request: http::Request<Body>, method: M) -> http::Response<Body>
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
    M: FnOnce(Q) -> F,
    F: Future<Output = Result<A, Status>> + Send + 'static,
{
    let method = Unary {
        method: Some(method),
        request: std::marker::PhantomData,
    };
    let mut grpc = Grpc::new(ProstCodec::<A, Q>::default()).max_decoding_message_size(REQUEST);
    grpc.unary(method, request).await
}

/// A method that is called once.
struct Unary<Q, M> {
    method: Option<M>,
    request: std::marker::PhantomData<Q>,
}

impl<Q, A, M, F> UnaryService<Q> for Unary<Q, M>
where
    M: FnOnce(Q) -> F,
    F: Future<Output = Result<A, Status>> + Send + 'static,
    A: Send + 'static,
{
    type Response = A;
    type Future = Pin<Box<dyn Future<Output = Result<Response<A>, Status>> + Send>>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let called = self
            .method
            .take()
            .map(|method| method(request.into_inner()));
        Box::pin(async move {
            match called {
                Some(response) => response.await.map(Response::new).inspect_err(|status| {
                    tracing::info!("{:?}: {}", status.code(), status.message());
                }),
                None => Err(Status::internal("a method was called twice")),
            }
        })
    }
}
