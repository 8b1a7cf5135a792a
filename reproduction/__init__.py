"""The papers' tables and figures: what they need, how they are made, and what differs from them."""
