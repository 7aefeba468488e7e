use rustix::fs::*;
fn main() {
    let dir = open("/tmp/meas", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
    std::fs::write("/tmp/meas/warm", "").unwrap();
    let p = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let t = |s: &str, f: &mut dyn FnMut()| {
        for _ in 0..2 {
            let i = cpu();
            for _ in 0..300_000 {
                f()
            }
            eprintln!("{s}: {} ns", (cpu() - i) / 300_000);
        }
    };
    t("openat+close", &mut || {
        openat(&dir, c"warm", p, Mode::empty()).unwrap();
    });
    t("openat2 0+close", &mut || {
        openat2(&dir, c"warm", p, Mode::empty(), ResolveFlags::empty()).unwrap();
    });
    t("openat2 beneath+close", &mut || {
        openat2(
            &dir,
            c"warm",
            p,
            Mode::empty(),
            ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
        )
        .unwrap();
    });
    t("openat2 cached+close", &mut || {
        openat2(
            &dir,
            c"warm",
            p,
            Mode::empty(),
            ResolveFlags::CACHED | ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
        )
        .unwrap();
    });
    t("statx name", &mut || {
        statx(
            &dir,
            c"warm",
            AtFlags::SYMLINK_NOFOLLOW,
            StatxFlags::BASIC_STATS | StatxFlags::BTIME,
        )
        .unwrap();
    });
    let f = openat(&dir, c"warm", p, Mode::empty()).unwrap();
    let proc = open("/proc/self/fd", OFlags::PATH, Mode::empty()).unwrap();
    t("statx empty", &mut || {
        statx(
            &f,
            c"",
            AtFlags::EMPTY_PATH,
            StatxFlags::BASIC_STATS | StatxFlags::BTIME,
        )
        .unwrap();
    });
    t("reopen proc", &mut || {
        openat(
            &proc,
            rustix::path::DecInt::from_fd(&f),
            OFlags::RDWR | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .unwrap();
    });
    t("open by name", &mut || {
        openat(
            &dir,
            c"warm",
            OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW,
            Mode::empty(),
        )
        .unwrap();
    });
}

fn cpu() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
