"""Lower bounds that no plan can beat: by cuts, by distances, by prices on connections."""
