//! Processor usage of threads, processes and the machine (getrusage(2), clock_getcpuclockid(3),
//! proc_loadavg(5)).

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;
use std::time::Duration;

use rustix::io::{Errno, Result};

/// Returns the number of times that the calling thread has blocked since it started. Preemptions
/// are not counted.
pub fn voluntary_switches() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call writes a structure of its own type through the pointer; all of it was zeroed
    // before.
    #[allow(unsafe_code)]
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_nvcsw as u64
}

/// Returns the processor time of all threads of the process `pid`, in user and system mode. Returns
/// `ESRCH` if there is no such process.
pub fn process_time(pid: u32) -> Result<Duration> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| Errno::SRCH)?;
    let mut clock = 0;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: both calls write to their arguments, which outlive them, and keep no reference.
    #[allow(unsafe_code)]
    let answers = unsafe {
        // The first call returns its error.
        match libc::clock_getcpuclockid(pid, &mut clock) {
            0 => crate::check(libc::clock_gettime(clock, &mut time)),
            error => Err(Errno::from_raw_os_error(error)),
        }
    };
    // The clock of a process that has ended is invalid.
    answers.map_err(|error| match error {
        Errno::INVAL => Errno::SRCH,
        error => error,
    })?;
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Returns the number of threads of the machine that run or wait for a processor now, including the
/// calling one, and `None` if `/proc` cannot be read. It takes about 2 µs; the file stays open.
///
/// The count is that of the machine (or of the container, where lxcfs provides `/proc/loadavg`). It
/// does not show that the processors of this process's cpuset are busy while others are idle, that
/// a quota of its cgroup is used up (`cpu.max`), or that the host of a virtual machine takes time
/// (steal). The cgroup's `cpu.pressure` shows all but the last, but as a total of the past that
/// needs two reads and the time between them, and it counts each wait for a processor, including
/// those of this process's own threads for each other.
pub fn running_threads() -> Option<usize> {
    static LOAD: LazyLock<Option<File>> = LazyLock::new(|| File::open("/proc/loadavg").ok());
    let mut text = [0; 128];
    let len = LOAD.as_ref()?.read_at(&mut text, 0).ok()?;
    // Three averages, then the number of running threads, a slash, and that of all threads.
    let text = std::str::from_utf8(&text[..len]).ok()?;
    let (running, _) = text.split_ascii_whitespace().nth(3)?.split_once('/')?;
    running.parse().ok()
}

/// Returns the time after which the kernel revokes a lease whose holder does not react, seconds
/// (proc_sys_fs(5)), as it was at the first call, and `None` if `/proc` cannot be read.
pub fn lease_break_time() -> Option<u64> {
    static TIME: LazyLock<Option<u64>> = LazyLock::new(|| {
        let text = std::fs::read_to_string("/proc/sys/fs/lease-break-time").ok()?;
        text.trim().parse().ok()
    });
    *TIME
}

/// Returns how many processors of the machine are online, whether or not this process may use
/// them: at least one.
pub fn online_processors() -> usize {
    // SAFETY: the call takes and returns a number.
    #[allow(unsafe_code)]
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(online).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_counted() {
        let before = voluntary_switches();
        std::thread::sleep(Duration::from_millis(1));
        assert!(voluntary_switches() > before);
    }

    #[test]
    fn the_calling_thread_runs_on_a_processor() {
        assert!(running_threads().expect("/proc is mounted") >= 1);
        let here = std::thread::available_parallelism().expect("known");
        assert!(online_processors() >= usize::from(here));
    }

    #[test]
    fn the_time_of_a_process_grows_as_it_works() {
        let own = std::process::id();
        let before = process_time(own).expect("there");
        while process_time(own).expect("there") == before {}
        assert_eq!(process_time(u32::MAX), Err(Errno::SRCH));
        let mut child = std::process::Command::new("true").spawn().expect("runs");
        child.wait().expect("ends");
        assert_eq!(process_time(child.id()), Err(Errno::SRCH));
    }
}
