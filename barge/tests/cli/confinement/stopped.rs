//! A process that is stopped with ptrace(2), and made to carry out system calls.

use std::path::Path;
use std::time::Duration;

use nix::libc;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

/// The instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0F, 0x05];

/// A stopped process.
pub(super) struct Stopped {
    pid: Pid,
    registers: libc::user_regs_struct,
}

/// The result of a system call: a value, or an errno.
type CallResult = Result<u64, i32>;

impl Stopped {
    /// Stops the process while its main thread waits in a system call.
    pub(super) fn attach(pid: u32) -> Stopped {
        let pid = Pid::from_raw(pid as i32);
        for _ in 0..1000 {
            ptrace::attach(pid).expect("the test may trace it");
            assert!(matches!(waitpid(pid, None), Ok(WaitStatus::Stopped(..))));
            let registers = ptrace::getregs(pid).expect("it is stopped");
            let instruction = (registers.rip - SYSCALL.len() as u64) as *mut libc::c_void;
            let code = ptrace::read(pid, instruction).unwrap_or_default();
            if code.to_ne_bytes().starts_with(&SYSCALL) {
                return Stopped { pid, registers };
            }
            ptrace::detach(pid, None).expect("it is stopped");
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("it waits in no system call");
    }

    /// Makes it carry out a call. Returns the signal that ends it, if it does not survive that.
    pub(super) fn call(
        &self,
        number: libc::c_long,
        arguments: [u64; 4],
    ) -> Result<CallResult, Signal> {
        let [rdi, rsi, rdx, r10] = arguments;
        let registers = libc::user_regs_struct {
            rip: self.registers.rip - SYSCALL.len() as u64,
            rax: number as u64,
            // The interrupted call is not restarted.
            orig_rax: u64::MAX,
            rdi,
            rsi,
            rdx,
            r10,
            r8: 0,
            r9: 0,
            ..self.registers
        };
        ptrace::setregs(self.pid, registers).expect("it is stopped");
        let after = loop {
            ptrace::step(self.pid, None).expect("it is stopped");
            match waitpid(self.pid, None).expect("a child or a traced process") {
                WaitStatus::Stopped(_, Signal::SIGTRAP) => {}
                WaitStatus::Stopped(_, signal) | WaitStatus::Signaled(_, signal, _) => {
                    return Err(signal);
                }
                other => panic!("unexpected: {other:?}"),
            }
            let after = ptrace::getregs(self.pid).expect("it is stopped");
            // A trap may come before the call.
            if after.rip != registers.rip {
                break after;
            }
        };
        let value = after.rax as i64;
        Ok(match value {
            -4095..0 => Err(-value as i32),
            value => Ok(value as u64),
        })
    }

    /// Puts `bytes` into its memory, and returns their address.
    fn put(&self, bytes: &[u8]) -> u64 {
        let address = (self.registers.rsp - 8192) & !15;
        for (at, word) in bytes.chunks(8).enumerate() {
            let mut whole = [0; 8];
            whole[..word.len()].copy_from_slice(word);
            let address = (address as usize + 8 * at) as *mut libc::c_void;
            ptrace::write(self.pid, address, i64::from_ne_bytes(whole)).expect("its stack");
        }
        address
    }

    /// Puts a path into its memory, and returns its address.
    pub(super) fn put_path(&self, path: &Path) -> u64 {
        self.put(&[path.as_os_str().as_encoded_bytes(), b"\0"].concat())
    }

    pub(super) fn open(&self, path: &Path, flags: i32) -> CallResult {
        let path = self.put_path(path);
        let call = [libc::AT_FDCWD as u64, path, flags as u64, 0];
        self.call(libc::SYS_openat, call).expect("it survives")
    }

    pub(super) fn execute(&self, path: &str) -> CallResult {
        let path = self.put_path(Path::new(path));
        self.call(libc::SYS_execve, [path, 0, 0, 0])
            .expect("it survives")
    }

    /// Connects a socket of this type to a port of this host.
    pub(super) fn connect(&self, kind: i32, port: u16) -> CallResult {
        let call = [libc::AF_INET as u64, kind as u64, 0, 0];
        let socket = self.call(libc::SYS_socket, call).expect("it survives")?;
        let mut address = (libc::AF_INET as u16).to_ne_bytes().to_vec();
        address.extend(port.to_be_bytes());
        address.extend([127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        let address = self.put(&address);
        let call = [socket, address, 16, 0];
        self.call(libc::SYS_connect, call).expect("it survives")
    }

    /// Sends a signal to this test.
    pub(super) fn signal(&self) -> CallResult {
        let call = [std::process::id().into(), libc::SIGCONT as u64, 0, 0];
        self.call(libc::SYS_kill, call).expect("it survives")
    }

    /// Kills it, and lets its parent notice.
    pub(super) fn kill(self) {
        nix::sys::signal::kill(self.pid, Signal::SIGKILL).expect("it exists");
        waitpid(self.pid, None).expect("it is traced");
    }
}
