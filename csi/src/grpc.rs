//! The table of methods: calls of the services by the path of a request.

use std::sync::Arc;

use grpc::{Request, Response};
use tonic::Status;

use crate::controller::Controller;
use crate::node::Node;
use crate::proto::{
    BoolValue, Capability, GetPluginCapabilitiesResponse, GetPluginInfoResponse, PluginCapability,
    PluginService, ProbeResponse,
};

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

impl Plugin {
    /// Serves one request.
    pub async fn route(self, request: Request) -> Response {
        let path = request.uri().path().to_owned();
        let Some(method) = path.strip_prefix("/csi.v1.") else {
            return Status::unimplemented("unknown service").into_http();
        };
        tracing::debug!("{}", method.escape_debug());
        // A method that may block, by the service and the function of it.
        macro_rules! unary {
            ($service:ident, $function:ident) => {
                grpc::unary(request, move |message| {
                    self.0.$service.$function(message).inspect_err(log)
                })
                .await
            };
        }
        macro_rules! immediate {
            ($response:expr) => {
                grpc::immediate(request, $response).await
            };
        }
        match method {
            "Identity/GetPluginInfo" => immediate!(self.info()),
            "Identity/GetPluginCapabilities" => immediate!(plugin_capabilities()),
            "Identity/Probe" => immediate!(ProbeResponse {
                ready: Some(BoolValue { value: true }),
            }),
            "Controller/ControllerGetCapabilities" => immediate!(self.0.controller.capabilities()),
            "Controller/CreateVolume" => unary!(controller, create),
            "Controller/DeleteVolume" => unary!(controller, delete),
            "Controller/ValidateVolumeCapabilities" => unary!(controller, validate),
            "Node/NodeGetCapabilities" => immediate!(self.0.node.capabilities()),
            "Node/NodeGetInfo" => immediate!(self.0.node.info()),
            "Node/NodeStageVolume" => unary!(node, stage),
            "Node/NodeUnstageVolume" => unary!(node, unstage),
            "Node/NodePublishVolume" => unary!(node, publish),
            "Node/NodeUnpublishVolume" => unary!(node, unpublish),
            "Node/NodeGetVolumeStats" => unary!(node, stats),
            "Node/NodeGetVolumeHealth" => unary!(node, health),
            _ => Status::unimplemented("unsupported method").into_http(),
        }
    }
}

fn log(status: &Status) {
    tracing::info!("{:?}: {}", status.code(), status.message());
}
