//! The conversation with an agent.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent::protocol::{
    Action, Challenge, Done, FromAgent, FromServer, Hello, Lines, Poke, Ready, Refused, VERSION,
    encode, parse_from_agent,
};
use layers::poke::{AGENT_UIDS, Agent, POKE_TIMEOUT};
use transports::{Interest, Link};
use vfs::{Errno, LogLimit};

use super::actions::{Step, steps};
use super::queue::Queue;
use super::{AgentShares, NotifiedShare};

/// The limit of lines about agents that have connected.
static AGENTS: LogLimit<()> = LogLimit::new();

/// Time for the first line over a network, and for the challenge.
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Time between two lines to an agent. One that does not answer in [`POKE_TIMEOUT`] is gone.
const PING_INTERVAL: Duration = Duration::from_secs(30);

/// The reason why a conversation ends.
enum Ended {
    /// The connection.
    Lost(io::Error),
    /// A message to the agent.
    Refused(String),
    /// Another conversation begins.
    Again(Hello),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Ended {
        Ended::Lost(error)
    }
}

/// Serves an agent until its connection ends. Over a port of a virtual machine an agent may be
/// started any time later, and again.
/// `timeout` is the time for each hello, if it is limited.
pub(super) fn serve(link: &dyn Link, shares: &AgentShares, timeout: Option<Duration>) -> io::Error {
    let never = match Queue::new() {
        Ok(never) => never,
        Err(error) => return error.into(),
    };
    let mut channel = Channel {
        link,
        lines: Lines::default(),
        never: Arc::new(never),
    };
    let mut hello = None;
    loop {
        let first = match hello.take() {
            Some(hello) => Ok(hello),
            None => channel.hello(timeout),
        };
        let ended = first.and_then(|hello| channel.converse(shares, &hello));
        match ended {
            Ok(never) => match never {},
            Err(Ended::Lost(error)) => return error,
            Err(Ended::Again(next)) => hello = Some(next),
            Err(Ended::Refused(message)) => {
                tracing::debug!("agent refused: {message}");
                if let Err(error) = channel.send(&FromServer::Error(Refused { message })) {
                    return error;
                }
            }
        }
    }
}

struct Channel<'a> {
    link: &'a dyn Link,
    lines: Lines,
    /// A queue without changes, to wait for lines alone.
    never: Arc<Queue>,
}

impl Channel<'_> {
    fn send(&self, message: &FromServer) -> io::Result<()> {
        self.link.send(&encode(message), true).map(drop)
    }

    /// Returns the next line, within `timeout`. Returns `None` if there is none and `wake` is
    /// readable, or the time is over.
    fn line(
        &mut self,
        timeout: Option<Duration>,
        wake: &Queue,
    ) -> Result<Option<FromAgent>, Ended> {
        let end = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let line = self.lines.next_line();
            let line = line.map_err(|_| io::Error::from(ErrorKind::InvalidData))?;
            if let Some(line) = line {
                return parse_from_agent(&line).map(Some).map_err(Ended::Refused);
            }
            let rest = end.map(|end| end.saturating_duration_since(Instant::now()));
            if rest.is_some_and(|rest| rest.is_zero()) {
                return Ok(None);
            }
            let interest = Interest {
                read: true,
                write: false,
            };
            let ready = self.link.wait(interest, wake.event(), rest)?;
            if ready.read || ready.hung_up {
                let mut bytes = [0; 4096];
                match self.link.recv(&mut bytes, false) {
                    Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                    Ok(len) => self.lines.push(&bytes[..len]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error.into()),
                }
            } else if ready.woken {
                return Ok(None);
            }
        }
    }

    /// Returns the next line, or an error if there is none within `timeout`.
    fn reply(&mut self, timeout: Option<Duration>) -> Result<FromAgent, Ended> {
        let never = self.never.clone();
        let line = self.line(timeout, &never)?;
        line.ok_or_else(|| io::Error::from(ErrorKind::TimedOut).into())
    }

    /// Waits for the first line. Lines before it are of an earlier conversation.
    fn hello(&mut self, timeout: Option<Duration>) -> Result<Hello, Ended> {
        loop {
            match self.reply(timeout) {
                Ok(FromAgent::Hello(hello)) => return Ok(hello),
                Ok(_) | Err(Ended::Refused(_)) => {}
                Err(ended) => return Err(ended),
            }
        }
    }

    fn converse(
        &mut self,
        shares: &AgentShares,
        hello: &Hello,
    ) -> Result<std::convert::Infallible, Ended> {
        if hello.version != VERSION {
            let message = format!("expected version {VERSION}, got {}", hello.version);
            return Err(Ended::Refused(message));
        }
        let share = shares.get(&hello.share).ok_or_else(|| {
            Ended::Refused(format!(
                "expected the name of a share that reports changes, got '{}'",
                hello.share
            ))
        })?;
        let queue = Arc::new(Queue::new().map_err(io::Error::from)?);
        let agent = self.challenge(&share, &hello.session)?;
        let client = agent.client().flatten();
        share.subscribe(&queue, client).map_err(|errno| {
            Ended::Refused(match errno {
                Errno::EOPNOTSUPP => "this share does not report changes".into(),
                errno => format!("changes are not reported: {errno}"),
            })
        })?;
        if let Some(suppressed) = AGENTS.permit(()) {
            tracing::info!(share = hello.share, suppressed, "an agent repeats changes");
        }
        self.send(&FromServer::Ready(Ready {
            session: hello.session.clone(),
        }))?;
        let mut id = 0;
        loop {
            let todo = match queue.pop() {
                Some(change) => {
                    let tree = share.tree.upgrade();
                    let tree = tree.ok_or_else(|| Ended::Refused("the share has ended".into()))?;
                    steps(&*tree, &share.pokes, client, &change)
                }
                None if queue.is_ended() => {
                    let message = "changes of the share are no longer reported";
                    return Err(Ended::Refused(message.into()));
                }
                None => match self.line(Some(PING_INTERVAL), &queue)? {
                    Some(line) => return Err(unexpected(line)),
                    None if queue.is_empty() => vec![Step::none()],
                    None => continue,
                },
            };
            for step in todo {
                self.poke(&agent, step, &mut id)?;
            }
        }
    }

    /// Adds an agent, which shows with a request through the share that it is a client of it.
    fn challenge(&mut self, share: &Arc<NotifiedShare>, session: &str) -> Result<Agent, Ended> {
        let random = sys::random::bytes::<20>().map_err(io::Error::from)?;
        let (number, rest) = random.split_at(4);
        let number = u32::from_le_bytes(std::array::from_fn(|at| number[at]));
        let uid = AGENT_UIDS.start + number % (AGENT_UIDS.end - AGENT_UIDS.start);
        let hex: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!(".barge-agent-{hex}");
        let agent = share.pokes.add(uid, name.clone().into_bytes());
        let agent = agent.map_err(|errno| Ended::Refused(format!("too many agents: {errno}")))?;
        self.send(&FromServer::Challenge(Challenge {
            session: session.into(),
            uid,
            name,
        }))?;
        match self.reply(Some(HELLO_TIMEOUT))? {
            FromAgent::Found(found) if found.session == session => {}
            other => return Err(unexpected(other)),
        }
        match agent.client() {
            Some(_) => Ok(agent),
            None => Err(Ended::Refused(
                "the agent's directory is no mount of this share, or its mount does not pass on \
                 users (9P: access=user or client)"
                    .into(),
            )),
        }
    }

    /// Lets the agent carry out a step.
    fn poke(&mut self, agent: &Agent, step: Step, id: &mut u64) -> Result<(), Ended> {
        let mut todo = VecDeque::from([step]);
        while let Some(step) = todo.pop_front() {
            *id += 1;
            if let Some(poke) = step.poke {
                agent.announce(poke);
            }
            let action = step.action;
            tracing::trace!(id, ?action, "poke");
            let message = Poke {
                id: *id,
                action: action.clone(),
            };
            self.send(&FromServer::Poke(message))?;
            let done = match self.reply(Some(POKE_TIMEOUT))? {
                FromAgent::Done(done) if done.id == *id => done,
                other => return Err(unexpected(other)),
            };
            let arrived = agent.withdraw();
            log(&action, &done, arrived);
            match step.fallback {
                Some((errno, steps)) if done.error == Some(i32::from(errno.raw())) => {
                    todo = steps.into();
                }
                // Further steps of a fallback need the one before.
                _ if done.error.is_some() => return Ok(()),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Logs a poke that has not raised its event.
fn log(action: &Action, done: &Done, arrived: bool) {
    if let Some(error) = done.error {
        tracing::debug!(?action, error, "a poke failed");
    } else if !arrived {
        tracing::debug!(?action, "the guest's kernel sent no request");
    }
}

/// Returns the consequence of a line that answers no request.
fn unexpected(line: FromAgent) -> Ended {
    match line {
        FromAgent::Hello(hello) => Ended::Again(hello),
        line => Ended::Refused(format!("unexpected line: {line:?}")),
    }
}
