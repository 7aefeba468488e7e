//! The server at the level of compounds. Test names refer to RFC 7530 for v4.0 and to RFC 8881 for
//! v4.1.

mod acls;
mod attributes;
mod copies;
mod delegations;
mod exports;
mod hostile;
mod labels;
mod locks;
mod names;
mod net;
mod offloads;
mod opens;
mod owners;
mod referrals;
mod sessions;
mod sparse;

use self::net::{Called, Net, Reply, World};
use crate::v4::attr::Attributes;
use crate::v4::op::{
    Claim, CreateHow, CreateSession, ExchangeId, Op, Open, OpenConfirm, OpenHow, Protect, Sequence,
    SetClientId, SetClientIdConfirm,
};
use crate::v4::reply::{ClientIdSet, Exchanged, Opened, Sequenced, SessionCreated};
use crate::v4::types::{Channel, NetAddr, Owner};
use crate::v4::{ClientId, SessionId, StateId, Status};

const READ: u32 = 1;
const WRITE: u32 = 2;

const BOTH: u32 = 3;

/// CREATE_SESSION4_FLAG_CONN_BACK_CHAN.
const BACKCHANNEL: u32 = 2;

/// A v4.0 connection and its confirmed client.
struct Client40 {
    net: Net,
    id: ClientId,
}

impl Client40 {
    fn new(world: &World, name: &[u8]) -> Client40 {
        let net = world.net(0);
        let set = net
            .send(&[Op::SetClientId(SetClientId {
                verifier: [1; 8],
                id: name,
                program: 0,
                addr: NetAddr {
                    netid: b"tcp",
                    addr: b"127.0.0.1.0.0",
                },
                ident: 0,
            })])
            .done();
        let ClientIdSet { client, confirm } = set.ok();
        net.send(&[Op::SetClientIdConfirm(SetClientIdConfirm {
            client,
            verifier: confirm,
        })])
        .done();
        Client40 { net, id: client }
    }

    /// Returns an OPEN of `name` in the root, for `access`.
    fn open<'a>(&self, owner: &'a [u8], seqid: u32, name: &'a [u8], access: u32) -> Op<'a> {
        self.opening(owner, seqid, name, access, OpenHow::NoCreate)
    }

    /// Returns an OPEN that creates `name` in the root.
    fn creation<'a>(&self, owner: &'a [u8], seqid: u32, name: &'a [u8]) -> Op<'a> {
        let attributes = Attributes {
            mode: Some(0o644),
            ..Attributes::default()
        };
        let how = OpenHow::Create(CreateHow::Guarded(attributes));
        self.opening(owner, seqid, name, BOTH, how)
    }

    fn opening<'a>(
        &self,
        owner: &'a [u8],
        seqid: u32,
        name: &'a [u8],
        access: u32,
        how: OpenHow<'a>,
    ) -> Op<'a> {
        Op::Open(Open {
            seqid,
            access,
            deny: 0,
            owner: Owner {
                client: self.id,
                name: owner,
            },
            how,
            claim: Claim::Null(name),
        })
    }

    /// Creates `name` in the root and confirms `owner`, whose next seqid is 3. Returns the handle
    /// and the stateid.
    fn create(&self, owner: &[u8], name: &[u8]) -> (Vec<u8>, StateId) {
        let made = self
            .net
            .send(&[Op::Putrootfh, self.creation(owner, 1, name), Op::Getfh])
            .done();
        let () = made.ok();
        let opened: Opened<'_> = made.ok();
        let handle: &[u8] = made.ok();
        let confirm = Op::OpenConfirm(OpenConfirm {
            state: opened.state,
            seqid: 2,
        });
        let confirmed = self.net.send(&[Op::Putfh(handle), confirm]).done();
        let () = confirmed.ok();
        (handle.to_vec(), confirmed.ok())
    }
}

/// A v4.1 session with one slot.
struct Client41 {
    net: Net,
    session: SessionId,
    sequence: std::cell::Cell<u32>,
}

/// The default channel attributes.
const CHANNEL: Channel = Channel {
    header_pad: 0,
    max_request: 8192,
    max_response: 8192,
    max_cached: 4096,
    max_operations: 16,
    max_requests: 1,
    rdma: None,
};

impl Client41 {
    fn new(world: &World, name: &[u8]) -> Client41 {
        Client41::on(world, name, CHANNEL)
    }

    fn on(world: &World, name: &[u8], fore: Channel) -> Client41 {
        let client = Client41::without_session(world, name, fore);
        client.send(&[Op::ReclaimComplete(false)]).done();
        client
    }

    /// Creates a client with a backchannel.
    fn called(world: &World, name: &[u8]) -> Client41 {
        let client = Client41::with_flags(world, name, CHANNEL, BACKCHANNEL);
        client.send(&[Op::ReclaimComplete(false)]).done();
        client
    }

    fn without_session(world: &World, name: &[u8], fore: Channel) -> Client41 {
        Client41::with_flags(world, name, fore, 0)
    }

    /// Creates a session with these flags of CREATE_SESSION, without RECLAIM_COMPLETE.
    fn with_flags(world: &World, name: &[u8], fore: Channel, flags: u32) -> Client41 {
        Client41::by(world.net(1), name, fore, flags)
    }

    /// Creates a v4.2 client with a backchannel.
    fn called_by_4_2(world: &World, name: &[u8]) -> Client41 {
        let client = Client41::by(world.net(2), name, CHANNEL, BACKCHANNEL);
        client.send(&[Op::ReclaimComplete(false)]).done();
        client
    }

    fn by(net: Net, name: &[u8], fore: Channel, flags: u32) -> Client41 {
        Client41::by_exchange(net, exchange_id(name), fore, flags)
    }

    fn by_exchange(net: Net, exchange: Op<'_>, fore: Channel, flags: u32) -> Client41 {
        let exchanged = net.send(&[exchange]).done();
        let Exchanged {
            client, sequence, ..
        } = exchanged.ok();
        let created = net
            .send(&[Op::CreateSession(CreateSession {
                client,
                sequence,
                flags,
                fore,
                back: CHANNEL,
                program: 0x4000_0000,
                security: Vec::new(),
            })])
            .done();
        let SessionCreated { session, .. } = created.ok();
        Client41 {
            net,
            session,
            sequence: std::cell::Cell::new(0),
        }
    }

    /// Returns an encoded compound with the slot's next sequence number.
    fn message(&self, ops: &[Op<'_>], cache_this: bool) -> Vec<u8> {
        self.sequence.set(self.sequence.get() + 1);
        let sequence = Op::Sequence(Sequence {
            session: self.session,
            sequence: self.sequence.get(),
            slot: 0,
            highest_slot: 0,
            cache_this,
        });
        self.net.message(&[&[sequence], ops].concat())
    }

    /// Sends a compound. SEQUENCE's result is already read from the reply, if it succeeded.
    fn send(&self, ops: &[Op<'_>]) -> Reply {
        let reply = self.net.again(&self.message(ops, false));
        if reply.count > 1 || reply.status == Status::Ok {
            let _: Sequenced = reply.ok();
        }
        reply
    }

    /// Returns an OPEN of the session's client.
    fn open<'a>(&self, access: u32, how: OpenHow<'a>, claim: Claim<'a>) -> Op<'a> {
        Op::Open(Open {
            seqid: 0,
            access,
            deny: 0,
            owner: Owner {
                client: 0,
                name: b"owner",
            },
            how,
            claim,
        })
    }
}

fn exchange_id(name: &[u8]) -> Op<'_> {
    Op::ExchangeId(ExchangeId {
        verifier: [1; 8],
        owner: name,
        flags: 0,
        protect: Protect::None,
        implementation: None,
    })
}
