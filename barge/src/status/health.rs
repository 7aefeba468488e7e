//! Health checks, as Kubernetes uses them.
//!
//! | path | fails if |
//! |---|---|
//! | `/livez` | a listener has ended: a restart may help |
//! | `/healthz` | the same, or a source does not answer, or state cannot be stored |
//! | `/readyz` | the same, or the server starts, drains or stops: clients should use another one |
//!
//! Parts that store state report what they cannot store ([`Problem`]), and are not probed.
//!
//! A source is probed on request, on a thread of its own, which may hang with the source. There is
//! at most one probe of a source at a time.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use vfs::cx::block_on;
use vfs::{AttrMask, Caller, FileSystem};

use super::http::Response;

/// Timeout of a source to return its root.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Time for which a result is reused.
const MAX_AGE: Duration = Duration::from_secs(1);

/// A check and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Check {
    pub(super) kind: CheckKind,
    /// The name, which no other check of a process has.
    pub(super) name: String,
    /// A line for each problem; empty if the check passed.
    pub(super) problems: Vec<String>,
    /// Whether the subject has not answered in time.
    #[serde(default)]
    hangs: bool,
}

/// The subject of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CheckKind {
    /// Whether the start, or the end, of the server lets clients connect.
    State,
    /// Whether the listeners accept connections.
    Listeners,
    /// Whether a source answers.
    Source,
    /// Whether state that survives a restart can be stored.
    Storage,
}

impl Check {
    pub(crate) fn new(kind: CheckKind, name: impl Into<String>, problems: Vec<String>) -> Check {
        Check {
            kind,
            name: name.into(),
            problems,
            hangs: false,
        }
    }

    /// Returns the check of a subject that has not answered in time if `hangs`.
    pub(super) fn hanging(self, hangs: bool) -> Check {
        Check { hangs, ..self }
    }

    /// Returns the problem of a source that does not answer, if it is one.
    pub(crate) fn hanging_source(&self) -> Option<&str> {
        let hangs = self.kind == CheckKind::Source && self.hangs;
        self.problems.first().filter(|_| hangs).map(String::as_str)
    }

    /// Returns the check with the name of its process, unless it is of a source, whose name is that
    /// of a share.
    pub(crate) fn of_process(mut self, process: &str) -> Check {
        if self.kind != CheckKind::Source {
            self.name = format!("{}/{process}", self.name);
        }
        self
    }
}

/// A set of checks that is served at a path of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probes {
    Live,
    Health,
    Ready,
}

impl Probes {
    /// Returns those at `path`.
    pub(super) fn at(path: &str) -> Option<Probes> {
        Some(match path {
            "/livez" => Probes::Live,
            "/healthz" => Probes::Health,
            "/readyz" => Probes::Ready,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Probes::Live => "livez",
            Probes::Health => "healthz",
            Probes::Ready => "readyz",
        }
    }

    /// Returns whether sources are probed.
    pub(super) fn include_sources(self) -> bool {
        self.include(CheckKind::Source)
    }

    fn include(self, kind: CheckKind) -> bool {
        match kind {
            CheckKind::Listeners => true,
            CheckKind::Source | CheckKind::Storage => self != Probes::Live,
            CheckKind::State => self == Probes::Ready,
        }
    }

    /// Returns whether all of `checks` passed that belong to it.
    pub(super) fn passed(self, checks: &[Check]) -> bool {
        let mut own = checks.iter().filter(|check| self.include(check.kind));
        own.all(|check| check.problems.is_empty())
    }

    /// Returns the response for `checks`: 200 if all passed, otherwise 503. The text is `ok`, or
    /// with `verbose` a line for each check, as Kubernetes writes it. A failure has these lines
    /// too, except that of `/healthz`, which has a line for each problem.
    pub(super) fn response(self, checks: &[Check], verbose: bool) -> Response {
        let own = || checks.iter().filter(|check| self.include(check.kind));
        let failed = !self.passed(checks);
        let mut text = String::new();
        if !verbose && !failed {
            text.push_str("ok");
        } else if !verbose && self == Probes::Health {
            let problems = own().flat_map(|check| &check.problems);
            let problems: Vec<_> = problems.map(String::as_str).collect();
            text.push_str(&problems.join("\n"));
        } else {
            for check in own() {
                let name = check.name.escape_debug();
                match &check.problems[..] {
                    [] => text.push_str(&format!("[+]{name} ok\n")),
                    problems => {
                        text.push_str(&format!("[-]{name} failed: {}\n", problems.join("; ")))
                    }
                }
            }
            let result = if failed { "failed" } else { "passed" };
            text.push_str(&format!("{} check {result}", self.name()));
        }
        match failed {
            false => Response::new("text/plain; charset=utf-8", format!("{text}\n")),
            true => Response::error("503 Service Unavailable", &text),
        }
    }
}

/// The state that parts of the server store, by the name of its check, each with the reason why
/// that fails now.
#[derive(Default)]
pub(crate) struct Problems(Mutex<BTreeMap<String, Option<String>>>);

impl Problems {
    /// Adds a check called `name`, which passes until a problem begins. `lost` says in the log what
    /// is lost meanwhile.
    pub(crate) fn add(self: &Arc<Self>, name: &str, lost: &'static str) -> Problem {
        self.0.lock().insert(name.to_owned(), None);
        Problem(Arc::new(Subject {
            all: self.clone(),
            name: name.to_owned(),
            lost,
        }))
    }

    pub(super) fn checks(&self) -> Vec<Check> {
        let all = self.0.lock();
        let checks = all.iter().map(|(name, why)| {
            let problem = why.iter().map(|why| format!("{name}: {why}"));
            Check::new(CheckKind::Storage, name, problem.collect())
        });
        checks.collect()
    }
}

/// A part of the server that stores state, in the health checks until it is dropped. A line of the
/// log reports the beginning of a problem, and another one its end.
#[derive(Clone)]
pub(crate) struct Problem(Arc<Subject>);

struct Subject {
    all: Arc<Problems>,
    name: String,
    lost: &'static str,
}

impl Problem {
    /// Returns one that only the log shows.
    #[cfg(test)]
    pub(crate) fn unobserved() -> Problem {
        Arc::new(Problems::default()).add("storage", "state is lost")
    }

    /// Reports that state cannot be stored, for the reason `why`. A problem that has begun already
    /// keeps its reason.
    pub(crate) fn begin(&self, why: &str) {
        let Subject { all, name, lost } = &*self.0;
        if let Some(current @ None) = all.0.lock().get_mut(name) {
            tracing::warn!("{lost}: {why}");
            *current = Some(why.to_owned());
        }
    }

    /// Reports that state is stored again.
    pub(crate) fn end(&self) {
        let Subject { all, name, .. } = &*self.0;
        let ended = all.0.lock().get_mut(name).and_then(Option::take);
        if let Some(why) = ended {
            tracing::info!("{name}: stored again, after: {why}");
        }
    }

    /// Returns whether state cannot be stored now.
    #[cfg(test)]
    pub(crate) fn is_present(&self) -> bool {
        let Subject { all, name, .. } = &*self.0;
        all.0.lock().get(name).is_some_and(Option::is_some)
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.name);
    }
}

/// A source and the result of its last probe.
pub(super) struct Probe {
    fs: Arc<dyn FileSystem>,
    state: Mutex<State>,
    finished: Condvar,
}

/// The reason why a probe has not passed.
pub(super) enum Unhealthy {
    /// The source has not answered for this time.
    Hangs(Duration),
    Fails(String),
}

impl fmt::Display for Unhealthy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unhealthy::Hangs(time) => write!(f, "has not answered for {} s", time.as_secs()),
            Unhealthy::Fails(why) => f.write_str(why),
        }
    }
}

#[derive(Default)]
struct State {
    /// Start of the probe that is in progress.
    started: Option<Instant>,
    last: Option<(Instant, Result<(), String>)>,
}

impl Probe {
    pub(super) fn new(fs: Arc<dyn FileSystem>) -> Arc<Probe> {
        Arc::new(Probe {
            fs,
            state: Mutex::default(),
            finished: Condvar::new(),
        })
    }

    /// Starts a probe, unless the last result is fresh or a probe is in progress.
    pub(super) fn start(self: &Arc<Self>) {
        let mut state = self.state();
        let fresh = |(at, _): &(Instant, _)| at.elapsed() < MAX_AGE;
        if state.started.is_some() || state.last.as_ref().is_some_and(fresh) {
            return;
        }
        let probe = self.clone();
        let spawned = std::thread::Builder::new()
            .name("barge-health".into())
            .spawn(move || probe.run());
        match spawned {
            Ok(_) => state.started = Some(Instant::now()),
            Err(error) => state.last = Some((Instant::now(), Err(error.to_string()))),
        }
    }

    /// Waits for the end of the probe, or for its timeout, and returns the result.
    pub(super) fn result(&self) -> Result<(), Unhealthy> {
        let mut state = self.state();
        while let Some(since) = state.started {
            let left = TIMEOUT.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Err(Unhealthy::Hangs(since.elapsed()));
            }
            self.finished.wait_for(&mut state, left);
        }
        let last = state.last.as_ref().map(|(_, last)| last.clone());
        last.unwrap_or(Ok(())).map_err(Unhealthy::Fails)
    }

    fn run(&self) {
        let attr = block_on(&Caller::ROOT, |cx| {
            let root = self.fs.root(cx)?;
            // Kernels cache attributes of their servers, and ask them for this one.
            let _ = root.statfs(cx);
            root.attr(cx, AttrMask::STAT)
        });
        let result = match attr {
            Ok(attr) if attr.nlink == 0 => Err("has been removed".to_owned()),
            Ok(_) => self.fs.ping().map_err(|errno| errno.to_string()),
            Err(errno) => Err(errno.to_string()),
        };
        let mut state = self.state();
        state.started = None;
        state.last = Some((Instant::now(), result));
        drop(state);
        self.finished.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_its_checks_and_kubernetes_form() {
        let check = |kind, name: &str, problems: &[&str]| {
            let problems = problems.iter().map(|&text| text.into()).collect();
            Check::new(kind, name, problems)
        };
        let checks = [
            check(CheckKind::State, "state", &["the server is starting"]),
            check(CheckKind::Listeners, "listeners", &[]),
            check(CheckKind::Source, "source/a", &["a: EIO", "a: too late"]),
            check(CheckKind::Storage, "nfs-state", &[]),
        ];
        let text = |probes: Probes, checks: &[Check], verbose| {
            let response = probes.response(checks, verbose);
            let (status, body) = response.parts();
            (status[..3].to_owned(), body)
        };
        let answer = |status: &str, body: &str| (status.to_owned(), body.to_owned());
        assert_eq!(text(Probes::Live, &checks, false), answer("200", "ok\n"));
        let live = "[+]listeners ok\nlivez check passed\n";
        assert_eq!(text(Probes::Live, &checks, true), answer("200", live));
        let health = "a: EIO\na: too late\n";
        assert_eq!(text(Probes::Health, &checks, false), answer("503", health));
        let ready = "[-]state failed: the server is starting\n[+]listeners ok\n\
                     [-]source/a failed: a: EIO; a: too late\n[+]nfs-state ok\n\
                     readyz check failed\n";
        for verbose in [false, true] {
            assert_eq!(text(Probes::Ready, &checks, verbose), answer("503", ready));
        }
        assert_eq!(
            text(Probes::Ready, &checks[1..2], false),
            answer("200", "ok\n")
        );
    }

    #[test]
    fn state_that_cannot_be_stored_is_seen_until_it_is_stored_or_its_owner_has_gone() {
        let problems = Arc::new(Problems::default());
        let state = problems.add("nfs-state", "clients lose their locks at a restart");
        let passes = |probes: Probes| probes.passed(&problems.checks());
        assert!(passes(Probes::Ready) && problems.checks().len() == 1);
        state.begin("disk full");
        state.begin("another reason");
        assert!(!passes(Probes::Ready) && !passes(Probes::Health) && passes(Probes::Live));
        assert_eq!(problems.checks()[0].problems, ["nfs-state: disk full"]);
        state.clone().end();
        assert!(passes(Probes::Ready));
        state.begin("disk full");
        drop(state);
        assert!(problems.checks().is_empty());
    }
}
