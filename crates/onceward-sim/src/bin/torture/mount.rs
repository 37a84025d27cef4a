//! Small disks: mounted, filled, cut off, and always unmounted again.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::Trouble;

/// `FS_IOC_SHUTDOWN` with `NOLOGFLUSH`: what is not on the disk now is lost. Waits for a line of input before it
/// cuts.
const CUT: &str = "
import fcntl, os, struct, sys
disk = os.open(sys.argv[1], os.O_RDONLY)
sys.stdin.readline()
fcntl.ioctl(disk, 0x8004587D, struct.pack('I', 2))
";

/// A disk that stays mounted until this is dropped.
pub(crate) struct Mount {
    pub(crate) point: PathBuf,
    image: Option<PathBuf>,
}

impl Mount {
    /// A disk in memory of this size.
    pub(crate) fn tmpfs(point: &Path, size: &str) -> Result<Self, Trouble> {
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "torture"])
            .arg(point))?;
        Ok(Self { point: point.to_owned(), image: None })
    }

    /// An ext4 disk in a file of this many MiB.
    pub(crate) fn ext4(point: &Path, image: &Path, megabytes: u64) -> Result<Self, Trouble> {
        std::fs::File::create(image)?.set_len(megabytes * 1024 * 1024)?;
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(image))?;
        let mount = Self { point: point.to_owned(), image: Some(image.to_owned()) };
        mount.attach()?;
        Ok(mount)
    }

    fn attach(&self) -> Result<(), Trouble> {
        let Some(image) = &self.image else {
            return Err("only an image can be mounted again".into());
        };
        run(Command::new("mount").args(["-o", "loop"]).arg(image).arg(&self.point))
    }

    /// A process that is ready to cut the power.
    pub(crate) fn cutter(&self) -> Result<Cutter, Trouble> {
        let mut command = Command::new("python3");
        command.args(["-c", CUT]).arg(&self.point).stdin(Stdio::piped());
        Ok(Cutter { child: command.spawn().map_err(|error| format!("python3 is needed to cut: {error}"))? })
    }

    /// Mounts it again, as after the power has come back.
    pub(crate) fn power_up(&self) -> Result<(), Trouble> {
        self.detach()?;
        self.attach()
    }

    fn detach(&self) -> Result<(), Trouble> {
        // A killed process may take a moment to close its files.
        for _ in 0..100 {
            if run(Command::new("umount").arg(&self.point).stderr(Stdio::null())).is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(format!("cannot unmount {}", self.point.display()).into())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.detach().is_err() {
            drop(run(Command::new("umount").arg("-l").arg(&self.point)));
        }
        if let Some(image) = &self.image {
            drop(std::fs::remove_file(image));
        }
    }
}

/// A process that waits for the signal to cut the power.
pub(crate) struct Cutter {
    child: Child,
}

impl Cutter {
    /// Cuts the power, and returns when the disk is gone.
    pub(crate) fn cut(mut self) -> Result<(), Trouble> {
        if let Some(mut stdin) = self.child.stdin.take() {
            stdin.write_all(b"now\n")?;
        }
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err("the power could not be cut (FS_IOC_SHUTDOWN)".into()) }
    }
}

/// Runs a command that must succeed.
fn run(command: &mut Command) -> Result<(), Trouble> {
    let status = command.status().map_err(|error| format!("cannot start {command:?}: {error}"))?;
    if status.success() {
        return Ok(());
    }
    Err(format!("{command:?} ended with {status}; root and the right to mount are needed").into())
}
