//! The module's allocator: what is small comes from lists of pieces that were given back.
//!
//! A request allocates and frees some forty times, almost always a few dozen bytes. The standard allocator looks for the best
//! place and joins what is free, which for such sizes costs more than it saves: time, and above all code that is not at hand in
//! the processor's caches when a request comes. Here a piece is a power of two of bytes, taken from the list of its size or, when
//! that is empty, cut off a block; freed, it goes back to the list. What is larger than [`LARGEST`] goes to the standard
//! allocator.
//!
//! Nothing here is inlined: the callers are many, and one copy of the code is in the caches.
//!
//! Blocks are never given back, so the lists hold what was needed at once at the worst moment, for each size by itself; wasm
//! memory never shrinks anyway.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;

/// The smallest piece in bytes, and its power of two.
const SMALLEST: usize = 1 << SMALLEST_POWER;
const SMALLEST_POWER: usize = 4;
/// The largest piece in bytes.
const LARGEST: usize = SMALLEST << (SIZES - 1);
const SIZES: usize = 9;
/// Bytes taken from the standard allocator at once. At this size it is aligned for every piece.
const BLOCK: usize = 64 * 1024;

/// Lists of free pieces, each of which begins with the address of the next.
pub(crate) struct Pieces {
    free: [Cell<*mut u8>; SIZES],
    /// What is left of the block at hand.
    next: Cell<*mut u8>,
    left: Cell<usize>,
}

// SAFETY: a wasm module has one thread; elsewhere it is not used but in tests, by one thread each.
unsafe impl Sync for Pieces {}

impl Pieces {
    pub(crate) const fn new() -> Self {
        Pieces { free: [const { Cell::new(null_mut()) }; SIZES], next: Cell::new(null_mut()), left: Cell::new(0) }
    }

    /// The list whose pieces hold this; `None` where none does. A piece is aligned to its size.
    fn list(&self, layout: Layout) -> Option<(usize, &Cell<*mut u8>)> {
        let bytes = layout.size().max(layout.align()).max(SMALLEST);
        let power = (bytes - 1).checked_ilog2().map_or(0, |power| power as usize + 1);
        self.free.get(power - SMALLEST_POWER).map(|list| (1 << power, list))
    }

    /// A new piece, when none is free.
    #[cold]
    fn cut(&self, size: usize) -> *mut u8 {
        if self.left.get() < size {
            // What is left of the block before is lost: less than the largest piece.
            let Ok(block) = Layout::from_size_align(BLOCK, LARGEST) else { return null_mut() };
            // SAFETY: the size is not zero.
            let start = unsafe { System.alloc(block) };
            if start.is_null() {
                return start;
            }
            self.next.set(start);
            self.left.set(BLOCK);
        }
        // From the end, whose address is a multiple of every size that was cut before it; so that it becomes one of this size, up to
        // one piece is lost.
        let end = self.left.get() & !(size - 1);
        self.left.set(end - size);
        // SAFETY: within the block.
        unsafe { self.next.get().add(end - size) }
    }
}

// SAFETY: pieces do not overlap while they are in use, have the size of their list and are aligned to it; what is too large for
// them is `System`'s, which the layout tells when it comes back.
unsafe impl GlobalAlloc for Pieces {
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some((size, list)) = self.list(layout) else {
            // SAFETY: the caller's.
            return unsafe { System.alloc(layout) };
        };
        let first = list.get();
        if first.is_null() {
            return self.cut(size);
        }
        // SAFETY: what is in a list is free, and begins with the address of the next.
        list.set(unsafe { first.cast::<*mut u8>().read() });
        first
    }

    #[inline(never)]
    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        match self.list(layout) {
            Some((_, list)) => {
                // SAFETY: it is free from now on, large enough for an address and aligned for it.
                unsafe { piece.cast::<*mut u8>().write(list.get()) };
                list.set(piece);
            }
            // SAFETY: the caller's.
            None => unsafe { System.dealloc(piece, layout) },
        }
    }

    #[inline(never)]
    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let Ok(new) = Layout::from_size_align(new_size, layout.align()) else { return null_mut() };
        let size = |layout| self.list(layout).map(|(size, _)| size);
        match (size(layout), size(new)) {
            // SAFETY: the caller's.
            (None, None) => unsafe { System.realloc(piece, layout, new_size) },
            (before, after) if before == after => piece,
            _ => {
                // SAFETY: the caller's; the old piece holds at least what is copied, and so does the new one.
                unsafe {
                    let to = self.alloc(new);
                    if !to.is_null() {
                        piece.copy_to_nonoverlapping(to, layout.size().min(new_size));
                        self.dealloc(piece, layout);
                    }
                    to
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weighbridge_routing::rng::SplitMix64;

    #[test]
    fn a_piece_holds_what_was_asked_for() {
        let pieces = Pieces::new();
        let size = |bytes, align| pieces.list(Layout::from_size_align(bytes, align).unwrap()).map(|(size, _)| size);
        assert_eq!([size(1, 1), size(16, 8), size(17, 1), size(32, 16)], [Some(16), Some(16), Some(32), Some(32)]);
        assert_eq!([size(8, 64), size(LARGEST - 1, 1), size(LARGEST, 1)], [Some(64), Some(LARGEST), Some(LARGEST)]);
        assert_eq!([size(LARGEST + 1, 1), size(1, 2 * LARGEST)], [None, None]);
    }

    /// Whatever comes and goes: nothing overlaps, everything is aligned and keeps its bytes.
    #[test]
    fn pieces_are_apart_aligned_and_untouched() {
        let (pieces, mut rng) = (Pieces::new(), SplitMix64::seeded(7));
        let mut held: Vec<(*mut u8, Layout, u8)> = Vec::new();
        let check = |(piece, layout, byte): &(*mut u8, Layout, u8)| {
            // SAFETY: it is in use, with so many bytes written.
            let bytes = unsafe { std::slice::from_raw_parts(*piece, layout.size()) };
            assert!(bytes.iter().all(|is| is == byte), "{layout:?}");
        };
        for nth in 0..20_000u32 {
            let number = rng.next_u64();
            let size = 1 + (number >> 8) as usize % (1 << (1 + (number >> 40) % 14));
            if held.len() > 200 || (number & 1 == 0 && !held.is_empty()) {
                let at = (number >> 3) as usize % held.len();
                let (piece, layout, byte) = held.swap_remove(at);
                check(&(piece, layout, byte));
                if number & 2 == 0 {
                    // SAFETY: it is in use, and no more from here on.
                    unsafe { pieces.dealloc(piece, layout) };
                    continue;
                }
                // SAFETY: it is in use; the new size is not zero.
                let grown = unsafe { pieces.realloc(piece, layout, size) };
                let layout = Layout::from_size_align(size, layout.align()).unwrap();
                let kept = layout.size().min(size);
                check(&(grown, Layout::from_size_align(kept.min(1), 1).unwrap(), byte));
                // SAFETY: it has so many bytes.
                unsafe { grown.write_bytes(byte, size) };
                held.push((grown, layout, byte));
                continue;
            }
            let layout = Layout::from_size_align(size, 1 << (number >> 50 & 7)).unwrap();
            // SAFETY: the size is not zero.
            let piece = unsafe { pieces.alloc(layout) };
            assert!(!piece.is_null() && piece.addr().is_multiple_of(layout.align()));
            // SAFETY: it has so many bytes.
            unsafe { piece.write_bytes(nth as u8, size) };
            held.push((piece, layout, nth as u8));
        }
        held.iter().for_each(check);
        held.into_iter().for_each(|(piece, layout, _)| {
            // SAFETY: it is in use, and no more from here on.
            unsafe { pieces.dealloc(piece, layout) };
        });
    }
}
