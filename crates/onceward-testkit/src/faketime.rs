//! A different wall clock for one program, with libfaketime from Debian's package `faketime`.

use std::path::{Path, PathBuf};

const SHARED_MEMORY: &str = "/dev/shm";

/// The library that fakes the time of the program that loads it (`LD_PRELOAD`).
#[must_use]
pub fn library() -> PathBuf {
    remove_stale_memory();
    folder().join("faketime/libfaketime.so.1")
}

/// The same, for programs with threads that wait for a time.
#[must_use]
pub fn library_for_threads() -> PathBuf {
    remove_stale_memory();
    folder().join("faketime/libfaketimeMT.so.1")
}

/// The single-threaded library, for a program whose allocator reads the clock before the library is ready: the C
/// library is loaded first.
#[must_use]
pub fn library_before_an_allocator() -> String {
    format!("{}:{}", library().display(), folder().join("libc.so.6").display())
}

/// Debian keeps libraries in a folder named after the machine's architecture.
fn folder() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let found = folders.into_iter().find(|folder| folder.join("faketime/libfaketime.so.1").exists());
    found.unwrap_or_else(|| {
        panic!("libfaketime is missing: install the Debian package `faketime`, or run scripts/test")
    })
}

/// The library names its shared memory after the process id. The leftovers of a killed process would break a later
/// one with the same id.
fn remove_stale_memory() {
    for entry in std::fs::read_dir(SHARED_MEMORY).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let of = name.strip_prefix("sem.faketime_sem_").or_else(|| name.strip_prefix("faketime_shm_"));
        if of.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            // Another test may be removing it as well, or it belongs to another user.
            drop(std::fs::remove_file(entry.path()));
        }
    }
}
