"""A first answer on your own pages: what does their metadata tell a language model?"""
