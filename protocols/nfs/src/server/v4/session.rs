//! Clients and sessions of v4.1: EXCHANGE_ID, CREATE_SESSION, SEQUENCE and the like (RFC 8881
//! sections 18.33 to 18.37, 18.46, 18.50, 18.51).

use std::hash::{DefaultHasher, Hasher as _};

use vfs::Sink as _;
use wire::Outgoing as _;

use super::callback::callback_parameters;
use super::compound::{Compound, OpError, OpResult};
use super::open_file::ExportTree;
use super::state::{self, Channel, ClientRef, Direction, Started};
use crate::rpc;
use crate::server::RequestContext;
use crate::v4::op::{
    BackchannelCtl, BindConnToSession, CreateSession, ExchangeId, Protect, Sequence,
};
use crate::v4::reply::{Bound, Exchanged, Sequenced, SessionCreated};
use crate::v4::types::{self, ServerOwner};
use crate::v4::{ClientId, SessionId, Status};

/// Flags of EXCHANGE_ID.
mod flag {
    pub(super) const SUPP_MOVED_REFER: u32 = 0x1;
    pub(super) const SUPP_MOVED_MIGR: u32 = 0x2;
    pub(super) const BIND_PRINC_STATEID: u32 = 0x100;
    pub(super) const USE_NON_PNFS: u32 = 0x1_0000;
    pub(super) const USE_PNFS_MDS: u32 = 0x2_0000;
    pub(super) const USE_PNFS_DS: u32 = 0x4_0000;
    pub(super) const UPD_CONFIRMED: u32 = 0x4000_0000;
    pub(super) const CONFIRMED: u32 = 0x8000_0000;
    /// The flags that a client may send.
    pub(super) const ALLOWED: u32 = SUPP_MOVED_REFER
        | SUPP_MOVED_MIGR
        | BIND_PRINC_STATEID
        | USE_NON_PNFS
        | USE_PNFS_MDS
        | USE_PNFS_DS
        | UPD_CONFIRMED;
}

/// Flags of CREATE_SESSION.
const PERSIST: u32 = 1;
const BACKCHANNEL: u32 = 2;
const RDMA: u32 = 4;

impl RequestContext<'_, Compound> {
    /// Returns the client of the compound's session.
    pub(super) fn session_client(&self) -> Result<ClientRef<ExportTree>, Status> {
        let slot = self.compound.slot.as_ref().ok_or(Status::OpNotInSession)?;
        Ok(slot.client())
    }

    pub(super) fn exchange_id(&mut self, args: ExchangeId<'_>) -> OpResult {
        if args.flags & !flag::ALLOWED != 0 {
            return Err(Status::Inval.into());
        }
        match args.protect {
            Protect::None => {}
            // Every client's own principal is the only protection.
            Protect::Machine(_) => return Err(Status::Inval.into()),
            Protect::Ssv(_) => return Err(Status::EncrAlgUnsupp.into()),
        }
        let (server, principal) = (self.server, self.principal());
        let exchanged = server.state.exchange_id(&state::ExchangeId {
            owner: args.owner,
            verifier: args.verifier,
            by: self.requester(&principal),
            update: args.flags & flag::UPD_CONFIRMED != 0,
        })?;
        let confirmed = if exchanged.confirmed {
            flag::CONFIRMED
        } else {
            0
        };
        let name = server.options.name.as_bytes();
        self.reply.value(&Exchanged {
            client: exchanged.client,
            sequence: exchanged.sequence,
            flags: flag::USE_NON_PNFS | confirmed,
            protect: 0,
            owner: ServerOwner {
                minor: 0,
                major: name,
            },
            scope: name,
            implementation: None,
        });
        Ok(())
    }

    pub(super) fn create_session(&mut self, args: CreateSession<'_>) -> OpResult {
        if args.flags & !(PERSIST | BACKCHANNEL | RDMA) != 0 {
            return Err(Status::Inval.into());
        }
        let how = callback_parameters(args.program, self.compound.minor, &args.security);
        let (server, principal) = (self.server, self.principal());
        let created = server.state.create_session(&state::CreateSession {
            client: args.client,
            sequence: args.sequence,
            by: self.requester(&principal),
            fore: channel_from_wire(&args.fore),
            back: channel_from_wire(&args.back),
            backchannel: args.flags & BACKCHANNEL != 0 && how.is_some(),
            callback: how.unwrap_or_default(),
            connection: self.connection,
        })?;
        self.reply.value(&SessionCreated {
            session: created.session,
            sequence: created.sequence,
            flags: if created.backchannel { BACKCHANNEL } else { 0 },
            fore: channel_to_wire(&created.fore),
            back: channel_to_wire(&created.back),
        });
        server.call_back(args.client);
        Ok(())
    }

    pub(super) fn destroy_session(&mut self, session: SessionId) -> OpResult {
        let (state, principal) = (&self.server.state, self.principal());
        let by = (self.connection, &self.requester(&principal));
        Ok(state.destroy_session(&session, by, self.compound.slot.as_ref())?)
    }

    pub(super) fn bind_connection(&mut self, args: BindConnToSession) -> OpResult {
        let direction = match args.direction {
            1 => Direction::Fore,
            2 => Direction::Back,
            3 | 7 => Direction::Both,
            _ => return Err(Status::Inval.into()),
        };
        let (server, principal) = (self.server, self.principal());
        let by = (self.connection, &self.requester(&principal));
        let (bound, client) = server.state.bind_connection(&args.session, by, direction)?;
        self.reply.value(&Bound {
            session: args.session,
            direction: match bound {
                Direction::Fore => 1,
                Direction::Back => 2,
                Direction::Both => 3,
            },
            rdma: false,
        });
        server.call_back(client);
        Ok(())
    }

    pub(super) fn backchannel_ctl(&mut self, args: BackchannelCtl<'_>) -> OpResult {
        let slot = self.compound.slot.as_ref().ok_or(Status::OpNotInSession)?;
        let how = callback_parameters(args.program, self.compound.minor, &args.security)
            .ok_or(Status::Inval)?;
        let state = &self.server.state;
        Ok(state.set_callback(&slot.session(), how)?)
    }

    pub(super) fn destroy_client_id(&mut self, client: ClientId) -> OpResult {
        let principal = self.principal();
        let by = self.requester(&principal);
        Ok(self.server.state.destroy_client_id(client, &by)?)
    }

    pub(super) fn reclaim_complete(&mut self, one_file_system: bool) -> OpResult {
        let client = self.session_client()?;
        if one_file_system {
            self.node()?;
            return Ok(());
        }
        Ok(self.server.state.reclaim_complete(&client)?)
    }

    /// Runs SEQUENCE for a compound of `count` operations. Returns whether the rest is to be run:
    /// `false` if the compound is a repetition, whose cached reply is then in place.
    pub(super) fn sequence(&mut self, args: Sequence, count: u32) -> Result<bool, OpError> {
        let mut digest = DefaultHasher::new();
        let rest = self.arguments.rest();
        digest.write_usize(rest.len());
        digest.write(&rest[..rest.len().min(512)]);
        let request = state::Sequence {
            session: args.session,
            slot: args.slot,
            seqid: args.sequence,
            highest_slot: args.highest_slot,
            cache_this: args.cache_this,
            connection: self.connection,
            digest: digest.finish(),
        };
        let principal = self.principal();
        let by = self.requester(&principal);
        let started = self.server.state.sequence(request, &by)?;
        match started {
            Started::Replay(reply) => {
                self.reply.take_call_copy();
                self.reply.truncate(self.compound.start);
                self.reply.bytes(&reply);
                Ok(false)
            }
            Started::New(slot) => {
                let channel = slot.channel();
                if self.record.bytes().len() > channel.max_request as usize {
                    return Err(Status::ReqTooBig.into());
                }
                if count > channel.max_operations {
                    return Err(Status::TooManyOps.into());
                }
                let most = match args.cache_this {
                    true => channel.max_cached.min(channel.max_response),
                    false => channel.max_response,
                };
                self.reply.limit(rpc::MARK + most as usize);
                self.reply.value(&Sequenced {
                    session: args.session,
                    sequence: args.sequence,
                    slot: args.slot,
                    highest_slot: slot.highest_slot(),
                    target_highest_slot: slot.target_highest_slot(),
                    flags: slot.status_flags(),
                });
                self.compound.slot = Some(slot);
                Ok(true)
            }
        }
    }
}

/// Converts a channel's attributes from the wire.
fn channel_from_wire(requested: &types::Channel) -> Channel {
    Channel {
        max_request: requested.max_request,
        max_response: requested.max_response,
        max_cached: requested.max_cached,
        max_operations: requested.max_operations,
        max_requests: requested.max_requests,
    }
}

/// Converts a channel's attributes to the wire.
fn channel_to_wire(agreed: &Channel) -> types::Channel {
    types::Channel {
        header_pad: 0,
        max_request: agreed.max_request,
        max_response: agreed.max_response,
        max_cached: agreed.max_cached,
        max_operations: agreed.max_operations,
        max_requests: agreed.max_requests,
        rdma: None,
    }
}
