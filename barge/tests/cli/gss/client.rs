//! An RPCSEC_GSS client (RFC 2203) with the ticket of the environment, which makes one call at a
//! time.

use std::io::{Read, Write};
use std::net::TcpStream;

use libgssapi::context::{ClientCtx, CtxFlags, SecurityContext};
use libgssapi::name::Name;
use libgssapi::oid::{GSS_MECH_KRB5, GSS_NT_HOSTBASED_SERVICE};
use wire::{Xdr, XdrReader};

/// The flavor RPCSEC_GSS.
const GSS: u32 = 6;

const LAST: u32 = 1 << 31;

/// The protection of arguments and results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    None = 1,
    Integrity = 2,
    Privacy = 3,
}

pub(super) struct Client {
    stream: TcpStream,
    context: ClientCtx,
    handle: Vec<u8>,
    service: Service,
    sequence: u32,
}

impl Client {
    /// Connects and establishes a context.
    pub(super) fn connect(port: u16, service: Service) -> Client {
        let server = Name::new(b"nfs@localhost", Some(GSS_NT_HOSTBASED_SERVICE)).expect("a name");
        let flags = CtxFlags::GSS_C_MUTUAL_FLAG;
        let mut client = Client {
            stream: TcpStream::connect(("127.0.0.1", port)).expect("connected"),
            context: ClientCtx::new(None, server, flags, Some(GSS_MECH_KRB5)),
            handle: Vec::new(),
            service,
            sequence: 0,
        };
        const INIT: u32 = 1;
        let token = client.context.step(None, None).expect("a ticket");
        let mut call = client.head((100_003, 3, 0), INIT);
        0u64.put(&mut call);
        token.expect("a token").to_vec().as_slice().put(&mut call);
        let (verifier, results) = client.exchange(&call);
        let mut from = XdrReader::new(&results);
        client.handle = from.opaque(400).expect("a handle").to_vec();
        assert_eq!((from.u32(), from.u32()), (Ok(0), Ok(0)), "GSS-API's status");
        let window = from.u32().expect("a window");
        let token = from.opaque(usize::MAX).expect("a token");
        let last = client
            .context
            .step(Some(token), None)
            .expect("the server's token");
        assert!(last.is_none() && client.context.is_complete());
        client.check(&window.to_be_bytes(), &verifier);
        client
    }

    fn check(&mut self, bytes: &[u8], mic: &[u8]) {
        self.context
            .verify_mic(bytes, mic)
            .expect("the server signs it");
    }

    fn mic(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.context.get_mic(bytes).expect("signed").to_vec()
    }

    /// Encodes a call up to its verifier.
    fn head(&self, what: (u32, u32, u32), procedure: u32) -> Vec<u8> {
        let mut call = Vec::new();
        for number in [self.sequence, 0, 2, what.0, what.1, what.2, GSS] {
            number.put(&mut call);
        }
        let words = [1, procedure, self.sequence, self.service as u32];
        let mut credential = words.map(u32::to_be_bytes).concat();
        self.handle.as_slice().put(&mut credential);
        credential.as_slice().put(&mut call);
        call
    }

    /// Makes a call, and returns the results of the procedure.
    pub(super) fn call<'a>(&mut self, what: (u32, u32, u32), arguments: &impl Xdr<'a>) -> Vec<u8> {
        const DATA: u32 = 0;
        self.sequence += 1;
        let mut call = self.head(what, DATA);
        let verifier = self.mic(&call);
        GSS.put(&mut call);
        verifier.as_slice().put(&mut call);
        let mut body = Vec::new();
        self.sequence.put(&mut body);
        arguments.put(&mut body);
        match self.service {
            Service::None => call.extend_from_slice(&body[4..]),
            Service::Integrity => {
                body.as_slice().put(&mut call);
                self.mic(&body).as_slice().put(&mut call);
            }
            Service::Privacy => {
                let sealed = self.context.wrap(true, &body).expect("encrypted");
                sealed.to_vec().as_slice().put(&mut call);
            }
        }
        let (verifier, results) = self.exchange(&call);
        let sequence = self.sequence.to_be_bytes();
        self.check(&sequence, &verifier);
        let mut from = XdrReader::new(&results);
        let body = match self.service {
            Service::None => return results,
            Service::Integrity => {
                let body = from.opaque(usize::MAX).expect("results");
                let mic = from.opaque(usize::MAX).expect("a signature");
                self.check(body, mic);
                body.to_vec()
            }
            Service::Privacy => {
                let sealed = from.opaque(usize::MAX).expect("results");
                self.context.unwrap(sealed).expect("the server's").to_vec()
            }
        };
        from.end().expect("nothing behind it");
        let (number, results) = body.split_at(4);
        assert_eq!(number, sequence);
        results.to_vec()
    }

    /// Sends a call. Returns the verifier of the reply, and the bytes after its status.
    fn exchange(&mut self, call: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let mark = call.len() as u32 | LAST;
        self.stream
            .write_all(&[&mark.to_be_bytes(), call].concat())
            .expect("sent");
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark).expect("a reply");
        let mut reply = vec![0; (u32::from_be_bytes(mark) & !LAST) as usize];
        self.stream.read_exact(&mut reply).expect("a whole reply");
        let mut from = XdrReader::new(&reply);
        let mut number = || from.u32().expect("a head");
        assert_eq!(
            [number(), number(), number()],
            [self.sequence, 1, 0],
            "accepted"
        );
        assert_eq!(number(), GSS);
        let verifier = from.opaque(400).expect("a verifier").to_vec();
        assert_eq!(from.u32(), Ok(0), "done");
        (verifier, from.rest().to_vec())
    }
}
