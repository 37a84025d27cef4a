//! Answers that a provider compressed, although it was asked not to.

use std::io::{self, Write};

use brotli_decompressor::DecompressorWriter;
use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH};

/// How much Brotli decompresses at once.
const BUFFER: usize = 4_096;

/// The answer without its compression, as it arrives.
pub(crate) enum Decoder {
    Identity,
    Gzip(flate2::write::MultiGzDecoder<Vec<u8>>),
    /// Deflate, of which the first byte has not arrived that shows its form.
    AnyDeflate,
    Deflate(flate2::write::ZlibDecoder<Vec<u8>>),
    /// Without the header of zlib, as some servers send it.
    RawDeflate(flate2::write::DeflateDecoder<Vec<u8>>),
    Zstd(Box<zstd::stream::write::Decoder<'static, Vec<u8>>>),
    Brotli(Box<DecompressorWriter<Vec<u8>>>),
}

impl Decoder {
    /// For an answer with these headers. They no longer say that it is compressed.
    ///
    /// # Errors
    /// The name of an encoding that is not known here.
    pub(crate) fn take(headers: &mut HeaderMap) -> Result<Self, String> {
        let Some(encoding) = headers.get(CONTENT_ENCODING) else { return Ok(Self::Identity) };
        let name = String::from_utf8_lossy(encoding.as_bytes()).trim().to_ascii_lowercase();
        let decoder = match name.as_str() {
            "" | "identity" => Self::Identity,
            "gzip" | "x-gzip" => Self::Gzip(flate2::write::MultiGzDecoder::new(Vec::new())),
            "deflate" => Self::AnyDeflate,
            "zstd" => match zstd::stream::write::Decoder::new(Vec::new()) {
                Ok(decoder) => Self::Zstd(Box::new(decoder)),
                Err(error) => return Err(format!("{name}: {error}")),
            },
            "br" => Self::Brotli(Box::new(DecompressorWriter::new(Vec::new(), BUFFER))),
            _ => return Err(name),
        };
        headers.remove(CONTENT_ENCODING);
        headers.remove(CONTENT_LENGTH);
        Ok(decoder)
    }

    /// What the next bytes of the answer contain.
    pub(crate) fn push(&mut self, bytes: Bytes) -> io::Result<Bytes> {
        if let (Self::AnyDeflate, Some(first)) = (&*self, bytes.first()) {
            // A header of zlib names the method 8 and a window of at most 2^15. No block of deflate begins like that:
            // its three lowest bits would say that it is not compressed, and the other bits of that byte are zero then.
            let has_header = first & 0x0f == 8 && first >> 4 <= 7;
            *self = if has_header {
                Self::Deflate(flate2::write::ZlibDecoder::new(Vec::new()))
            } else {
                Self::RawDeflate(flate2::write::DeflateDecoder::new(Vec::new()))
            };
        }
        Ok(match self {
            Self::Identity | Self::AnyDeflate => bytes,
            Self::Gzip(decoder) => {
                decoder.write_all(&bytes)?;
                decoder.flush()?;
                std::mem::take(decoder.get_mut()).into()
            }
            Self::Deflate(decoder) => {
                decoder.write_all(&bytes)?;
                decoder.flush()?;
                std::mem::take(decoder.get_mut()).into()
            }
            Self::RawDeflate(decoder) => {
                decoder.write_all(&bytes)?;
                decoder.flush()?;
                std::mem::take(decoder.get_mut()).into()
            }
            Self::Zstd(decoder) => {
                decoder.write_all(&bytes)?;
                decoder.flush()?;
                std::mem::take(decoder.get_mut()).into()
            }
            Self::Brotli(decoder) => {
                decoder.write_all(&bytes)?;
                decoder.flush()?;
                std::mem::take(decoder.get_mut()).into()
            }
        })
    }
}

impl Decoder {
    /// Whether the answer is not compressed, so that every byte of it is known to be what was sent.
    pub(crate) fn is_identity(&self) -> bool {
        matches!(self, Self::Identity)
    }

    /// Checks the sum at the end of the answer. Encodings without one here check it themselves, or have none.
    ///
    /// # Errors
    /// The answer is damaged, or has no end.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        match self {
            Self::Gzip(decoder) => decoder.try_finish(),
            Self::Deflate(decoder) => decoder.try_finish(),
            Self::RawDeflate(decoder) => decoder.try_finish(),
            Self::Identity | Self::AnyDeflate | Self::Zstd(_) | Self::Brotli(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn decoder(name: &'static str) -> Result<(Decoder, HeaderMap), String> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(name));
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("7"));
        let decoder = Decoder::take(&mut headers)?;
        Ok((decoder, headers))
    }

    #[test]
    fn every_event_of_a_compressed_stream_is_read_when_it_arrives() {
        let events = ["data: one\n\n", "data: two\n\n", "data: [DONE]\n\n"];
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        let (mut decoder, headers) = decoder("GZip").unwrap();
        assert!(headers.is_empty(), "{headers:?}");
        for event in events {
            gzip.write_all(event.as_bytes()).unwrap();
            gzip.flush().unwrap();
            let sent = std::mem::take(gzip.get_mut());
            assert_eq!(decoder.push(sent.into()).unwrap(), event);
        }
    }

    #[test]
    fn every_event_of_a_stream_in_brotli_is_read_when_it_arrives() {
        // The reference encoder wrote this, with a flush after each event. No encoder is needed for anything else.
        let sent: [(&[u8], &str); 3] = [
            (b"\x0b\x05\x80data: one\n\n", "data: one\n\n"),
            (b"\x50\x00\x00\x40\x5a\xe1\x8d\xee\x4e\x11\xa2\x4a\x04\xb6\x60\x00", "data: two\n\n"),
            (
                b"\x68\x00\x00\x40\xc0\x43\xd6\x5f\x33\x95\x75\x53\x04\xe8\x12\x80\xa6\xc6\x07\x03\x03",
                "data: [DONE]\n\n",
            ),
        ];
        let (mut decoder, headers) = decoder("br").unwrap();
        assert!(headers.is_empty(), "{headers:?}");
        for (compressed, event) in sent {
            assert_eq!(decoder.push(compressed.into()).unwrap(), event);
        }
    }

    #[test]
    fn deflate_may_have_the_header_of_zlib_or_not() {
        let text = "{\"choices\":[1,1,1,1,1,1,1,1]}";
        let zlib = |mut encoder: flate2::write::ZlibEncoder<Vec<u8>>| {
            encoder.write_all(text.as_bytes()).unwrap();
            encoder.finish().unwrap()
        };
        let raw = |mut encoder: flate2::write::DeflateEncoder<Vec<u8>>| {
            encoder.write_all(text.as_bytes()).unwrap();
            encoder.finish().unwrap()
        };
        for level in [0, 1, 6, 9] {
            let level = flate2::Compression::new(level);
            for sent in [
                zlib(flate2::write::ZlibEncoder::new(Vec::new(), level)),
                raw(flate2::write::DeflateEncoder::new(Vec::new(), level)),
            ] {
                let (mut decoder, _) = decoder("deflate").unwrap();
                let mut read = Vec::new();
                for byte in &sent {
                    read.extend(decoder.push(Bytes::copy_from_slice(&[*byte])).unwrap());
                }
                assert_eq!(
                    (String::from_utf8(read).unwrap().as_str(), decoder.finish().is_ok()),
                    (text, true)
                );
            }
        }
    }

    #[test]
    fn a_damaged_answer_is_noticed_at_its_end() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(b"{}").unwrap();
        let mut sent = gzip.finish().unwrap();
        let sum = sent.len() - 8;
        sent[sum] ^= 1;
        for (sent, what) in [(&sent[..], "a wrong sum"), (&sent[..sum], "no sum")] {
            let (mut decoder, _) = decoder("gzip").unwrap();
            let read = decoder.push(Bytes::copy_from_slice(sent));
            assert!(read.is_err() || decoder.finish().is_err(), "{what}");
        }
    }

    #[test]
    fn other_encodings_are_named() {
        assert!(decoder("identity").is_ok());
        let zstd = zstd::bulk::compress(b"{}", 3).unwrap();
        assert_eq!(decoder("zstd").unwrap().0.push(zstd.into()).unwrap(), "{}");
        assert_eq!(decoder("compress").err().as_deref(), Some("compress"));
        assert!(decoder("br").unwrap().0.push(Bytes::from_static(b"plain text, not Brotli")).is_err());
        assert!(decoder("gzip").unwrap().0.push(Bytes::from_static(b"plain text, not gzip")).is_err());
    }
}
