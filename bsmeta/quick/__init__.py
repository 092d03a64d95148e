"""A first answer on pages of one's own: what does their metadata tell a language model?"""
