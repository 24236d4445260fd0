"""HTTP/2: fields, frames and floods of its own."""
