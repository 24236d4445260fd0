//! `space`, the guest's daemon: the initramfs's `/init`, then PID 1 for as long as the microVM lives.
//!
//! It does what the host asks for over two virtio ports, or two vsock connections (`docs/protocol.md`, section 2) and listens to nothing else. It uses no file
//! of the guest's system: guest root may delete or replace everything there, and the daemon goes on.

mod boot;
mod calibrate;
mod cgroup;
mod child;
mod configure;
mod connect;
mod crc;
mod devices;
mod disk;
mod exec;
mod files;
mod imprint;
mod inherited;
mod inlet;
mod job;
mod life;
mod metrics;
mod net;
mod process;
mod processes;
mod procs;
mod report;
mod retain;
mod ring;
mod server;
mod shutdown;
mod sys;
mod terminal;
mod tree;
mod users;
mod variables;
mod vsock;
mod watch;

fn main() {
    if std::process::id() != 1 {
        println!("space {} (the guest's init; it does nothing outside of a microVM)", env!("CARGO_PKG_VERSION"));
        return;
    }
    // SAFETY: a plain call. Freed buffers go back to the kernel, so that an idle daemon stays small.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 64 << 10);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 64 << 10);
    }
    let failed = match boot::boot().and_then(server::Server::new) {
        Ok(server) => server.run(),
        Err(why) => why,
    };
    eprintln!("space: boot failed: {failed}");
    shutdown::restart()
}
