//! Golden bytes of the messages: encoded with the Go library of the specification, version 1.13.

use std::collections::HashMap;
use std::fmt::Debug;

use csi::proto::*;
use prost::Message;

fn map(key: &str, value: &str) -> HashMap<String, String> {
    HashMap::from([(key.into(), value.into())])
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("text"), 16);
    digits
        .map(|pair| byte(pair).expect("hexadecimal"))
        .collect()
}

fn mount() -> Option<VolumeCapability> {
    Some(VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume {
            fs_type: "f".into(),
            mount_flags: vec!["ro".into(), "x".into()],
            volume_mount_group: "g".into(),
        })),
        access_mode: Some(AccessMode {
            mode: Mode::MultiNodeMultiWriter.into(),
        }),
    })
}

fn block() -> VolumeCapability {
    VolumeCapability {
        access_type: Some(AccessType::Block(Empty {})),
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
    }
}

/// Returns the offsets at which the fields of a message begin. Numbers are less than 128.
fn fields(message: &[u8]) -> Vec<usize> {
    let (mut at, mut offsets) = (0, Vec::new());
    while at < message.len() {
        offsets.push(at);
        let (tag, value) = (message[at], message[at + 1]);
        assert!(tag < 128 && value < 128);
        at += 2 + match tag & 7 {
            0 => 0,
            2 => usize::from(value),
            other => panic!("wire type {other}"),
        };
    }
    offsets
}

/// Checks that a message is decoded, and that its truncations are refused, except between fields.
fn received<M: Message + Default + PartialEq + Debug>(hex: &str, expected: &M) {
    let bytes = bytes(hex);
    assert_eq!(&M::decode(&*bytes).expect("good"), expected);
    for len in 0..bytes.len() {
        let is_whole = fields(&bytes).contains(&len);
        let decoded = M::decode(&bytes[..len]).is_ok();
        assert_eq!(decoded, is_whole, "{len} bytes");
    }
}

/// Checks the encoding of a response.
fn sent<M: Message>(hex: &str, message: &M) {
    assert_eq!(message.encode_to_vec(), bytes(hex));
}

#[test]
fn requests_of_the_node_service() {
    received(
        "0a02696412060a01701201331a022f7322022f742a131a020805120d0a01661202726f1201781a0167\
         30013a060a017312013142060a0176120132",
        &NodePublishVolumeRequest {
            volume_id: "id".into(),
            staging_target_path: "/s".into(),
            target_path: "/t".into(),
            volume_capability: mount(),
            readonly: true,
            secrets: map("s", "1"),
            volume_context: map("v", "2"),
        },
    );
    received(
        "0a02696412060a01701201331a022f7322131a020805120d0a01661202726f1201781a01672a060a01\
         7312013132060a0176120132",
        &NodeStageVolumeRequest {
            volume_id: "id".into(),
            staging_target_path: "/s".into(),
            volume_capability: mount(),
            secrets: map("s", "1"),
            volume_context: map("v", "2"),
        },
    );
    received(
        "0a02696412022f73",
        &NodeUnstageVolumeRequest {
            volume_id: "id".into(),
            staging_target_path: "/s".into(),
        },
    );
    received(
        "0a02696412022f74",
        &NodeUnpublishVolumeRequest {
            volume_id: "id".into(),
            target_path: "/t".into(),
        },
    );
    let stats = NodeGetVolumeStatsRequest::decode(&*bytes("0a02696412022f741a022f73"));
    let expected = NodeGetVolumeStatsRequest {
        volume_id: "id".into(),
        volume_path: "/t".into(),
    };
    assert_eq!(stats.expect("good"), expected);
    received(
        "0a02696412022f741a022f73",
        &NodeGetVolumeHealthRequest {
            volume_id: "id".into(),
            volume_publish_path: "/t".into(),
            staging_target_path: "/s".into(),
        },
    );
}

#[test]
fn requests_of_the_controller_service() {
    received(
        "0a016e1204080510061a061a0208010a0022060a01701201332a060a0173120131320512030a017842\
         060a0176120132",
        &CreateVolumeRequest {
            name: "n".into(),
            volume_capabilities: vec![block()],
            parameters: map("p", "3"),
            volume_content_source: Some(Empty {}),
            mutable_parameters: map("v", "2"),
        },
    );
    let delete = DeleteVolumeRequest::decode(&*bytes("0a02696412060a0173120131"));
    assert_eq!(delete.expect("good").volume_id, "id");
    let validate = ValidateVolumeCapabilitiesRequest::decode(&*bytes(
        "0a02696412060a01761201321a061a0208010a0022060a01701201332a060a0173120131",
    ));
    let expected = ValidateVolumeCapabilitiesRequest {
        volume_id: "id".into(),
        volume_context: map("v", "2"),
        volume_capabilities: vec![block()],
        parameters: map("p", "3"),
    };
    assert_eq!(validate.expect("good"), expected);
}

#[test]
fn responses() {
    sent(
        "0a0e0807120269641a060a0176120132",
        &CreateVolumeResponse {
            volume: Some(Volume {
                capacity_bytes: 7,
                volume_id: "id".into(),
                volume_context: map("v", "2"),
            }),
        },
    );
    let confirmed = ValidateVolumeCapabilitiesResponse {
        confirmed: Some(Confirmed {
            volume_context: map("v", "2"),
            volume_capabilities: vec![block()],
            parameters: map("p", "3"),
        }),
        message: "m".into(),
    };
    // The order of fields differs within the capability, so the message is compared.
    let hex = "0a180a060a017612013212061a0208010a001a060a017012013312016d";
    received(hex, &confirmed);
    sent(
        "0a080801100218032002",
        &NodeGetVolumeStatsResponse {
            usage: vec![VolumeUsage {
                available: 1,
                total: 2,
                used: 3,
                unit: Unit::Inodes.into(),
            }],
        },
    );
    sent(
        "0a0e0a026964120808021201521a016d",
        &NodeGetVolumeHealthResponse {
            volume_health: Some(VolumeHealth {
                volume_id: "id".into(),
                health_statuses: vec![HealthEntry {
                    status: HealthError::Inaccessible.into(),
                    reason: "R".into(),
                    message: "m".into(),
                }],
            }),
        },
    );
    sent(
        "0a016e1009",
        &NodeGetInfoResponse {
            node_id: "n".into(),
            max_volumes_per_node: 9,
        },
    );
    let service = |kind| GetCapabilitiesResponse {
        capabilities: vec![ServiceCapability {
            rpc: Some(Capability { kind }),
        }],
    };
    sent("0a040a020807", &service(NodeRpc::GetVolumeHealth.into()));
    sent(
        "0a040a020801",
        &service(ControllerRpc::CreateDeleteVolume.into()),
    );
    sent(
        "0a016e120176",
        &GetPluginInfoResponse {
            name: "n".into(),
            vendor_version: "v".into(),
        },
    );
    sent(
        "0a040a020801",
        &GetPluginCapabilitiesResponse {
            capabilities: vec![PluginCapability {
                service: Some(Capability {
                    kind: PluginService::ControllerService.into(),
                }),
            }],
        },
    );
    sent(
        "0a020801",
        &ProbeResponse {
            ready: Some(BoolValue { value: true }),
        },
    );
}
